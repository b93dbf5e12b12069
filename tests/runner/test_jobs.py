"""What a job will take, before it is begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipform.addons.batch.datasets import make_job, plan
from slipform.config import read_settings
from slipform.errors import ConfigError
from slipform.prices import Price, price_of
from slipform.testing import FakeModel
from tests.conftest import PERSON
from tests.runner.conftest import fake_router, write_rows


def test_an_estimate_calls_nothing_and_writes_nothing(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 100)
    model = FakeModel(["x"])
    settings = read_settings("prices: {'fake/any': {input: 1, output: 10}}")
    job, _ = make_job(
        tmp_path / "in.jsonl",
        schema=PERSON,
        out=tmp_path / "out.jsonl",
        prompt="x" * 400,
        settings=settings,
        router=fake_router(model),
    )
    guess = plan(job)
    assert (guess.rows, guess.pending) == (100, 100)
    assert 100 * 100 < guess.input_tokens < 100 * 200
    assert 100 * 2 < guess.output_tokens < 100 * 20
    assert guess.cost == pytest.approx((guess.input_tokens + 10 * guess.output_tokens) / 1e6)
    assert model.requests == []
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_the_cost_is_unknown_without_a_price(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 1)
    router = fake_router(FakeModel(["x"]))
    job, _ = make_job(tmp_path / "in.jsonl", schema=PERSON, out=tmp_path / "out.jsonl", router=router)
    assert plan(job).cost is None


def test_an_estimate_finds_the_mistakes_a_run_would(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 2)
    router = fake_router(FakeModel(["x"]))
    job, _ = make_job(tmp_path / "in.jsonl", schema=PERSON, out=tmp_path / "o.jsonl", prompt="{x}", router=router)
    with pytest.raises(ConfigError, match="'x'"):
        plan(job)


def test_prices_are_found_by_name_and_then_by_pattern() -> None:
    prices = {
        "a/*": Price(input=1, output=1),
        "a/b": Price(input=2, output=2),
        "*": Price(input=3, output=3),
    }
    found = [price_of(prices, name) for name in ("a/b", "a/c", "x/y")]
    assert [price and price.input for price in found] == [2, 1, 3]
    assert price_of({"a/[b]": Price(input=1, output=1)}, "a/b") is None
