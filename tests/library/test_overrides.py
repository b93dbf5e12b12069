"""What a call may have of its own, and what a client takes from its configuration."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from slipform import AsyncClient, Budget, Client, Options, Price
from slipform.addons.records.api import ExtractOptions
from slipform.codecs import Capabilities
from slipform.config import read_settings
from slipform.engine.setup import options_of, router_of
from slipform.errors import SchemaViolationError, UpstreamTimeout
from slipform.ir import ModelResponse, Usage
from slipform.library.request import Overrides, TextOverrides
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.schema import OutputStrategy
from slipform.testing import FakeModel, FakeVendor, hang

ROOT = Path(__file__).resolve().parents[2]


class Person(BaseModel):
    name: str


ADA = '{"name": "Ada"}'
BAD = '{"age": 36}'
CAN = Capabilities(native=True, forced_tool=True)


def faced(face: str, script: list[Any], **more: Any) -> tuple[FakeModel, Callable[..., Any]]:
    """A scripted model, and `ask` by way of one of the faces."""
    model = FakeModel(script, capabilities=CAN)
    router = Router({"fake": model})
    client, twin = Client("fake/m", router=router, **more), AsyncClient("fake/m", router=router, **more)

    async def ask(shape: Any, prompt: str, **given: Any) -> Any:
        if face == "ask":
            return client.ask(shape, prompt, **given)
        if face == "ask_full":
            return client.ask_full(shape, prompt, **given).value
        if face == "stream":
            return client.stream(shape, prompt, **given).result.value
        if face == "async ask":
            return await twin.ask(shape, prompt, **given)
        return (await twin.stream(shape, prompt, **given).result()).value

    return model, ask


FACES = ["ask", "ask_full", "stream", "async ask", "async stream"]


@pytest.mark.parametrize("described", [TextOverrides, Overrides, ExtractOptions])
def test_every_argument_is_described_in_the_api_reference(described: type) -> None:
    """The reference shows what has a docstring."""
    body = ast.parse(inspect.getsource(described)).body[0].body  # type: ignore[attr-defined]
    shown = {
        ast.unparse(each.target)
        for each, following in pairwise(body)
        if isinstance(each, ast.AnnAssign) and isinstance(following, ast.Expr)
    }
    assert shown == {ast.unparse(each.target) for each in body if isinstance(each, ast.AnnAssign)}


def test_the_guide_lists_every_argument_of_a_call() -> None:
    guide = (ROOT / "docs" / "library.md").read_text("utf-8")
    table = guide.partition("### Arguments of a call")[2].partition("##")[0]
    names = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.splitlines() if row.startswith("|")]
    assert {name for cell in names for name in cell} == set(Overrides.__annotations__)


@pytest.mark.covers("S4-54", "S1-14")
@pytest.mark.parametrize("face", FACES)
async def test_every_face_takes_the_same_overrides(face: str) -> None:
    model, ask = faced(face, [BAD, ADA])
    person = await ask(
        Person,
        "Who?",
        model="fake/other",
        system="Be brief.",
        max_tokens=9,
        temperature=0.5,
        seed=7,
        timeout=60,
        max_attempts=2,
        strategy="tool",
    )
    assert person == Person(name="Ada")
    first = model.requests[0]
    assert (first.model, first.max_tokens) == ("other", 9)
    assert [message.text for message in first.messages] == ["Be brief.", "Who?"]
    assert (first.sampling.temperature, first.sampling.seed) == (0.5, 7)
    assert first.response_format is not None
    assert first.response_format.strategy is OutputStrategy.TOOL
    assert len(model.requests) == 2
    assert first.timeout is not None
    assert first.timeout > (model.requests[1].timeout or 60)


@pytest.mark.covers("C02")
@pytest.mark.parametrize("face", FACES)
async def test_the_attempts_of_a_call_come_before_those_of_its_client(face: str) -> None:
    model, ask = faced(face, [BAD, BAD, ADA])
    assert (await ask(Person, "Who?")).name == "Ada"
    assert len(model.requests) == 3
    model, ask = faced(face, [BAD, ADA], options=Options(budget=Budget(attempts=3)))
    with pytest.raises(SchemaViolationError, match="1 attempt"):
        await ask(Person, "Who?", max_attempts=1)
    assert len(model.requests) == 1


@pytest.mark.parametrize("face", FACES)
async def test_validators_of_a_call_are_added_to_the_clients(face: str) -> None:
    def no_bob(value: Any) -> str | None:
        return "no Bobs" if value.name == "Bob" else None

    def short(value: Any) -> str | None:
        return "too long" if len(value.name) > 3 else None

    options = Options(budget=Budget(attempts=3), validators=(short,))
    model, ask = faced(face, ['{"name": "Bob"}', '{"name": "Alice"}', ADA], options=options)
    assert (await ask(Person, "Who?", validators=[no_bob])).name == "Ada"
    assert "no Bobs" in model.requests[1].messages[-1].text
    assert "too long" in model.requests[2].messages[-1].text


@pytest.mark.parametrize("face", FACES)
async def test_an_argument_that_there_is_none_of_is_refused(face: str) -> None:
    model, ask = faced(face, [ADA])
    with pytest.raises(TypeError, match=r"Unknown argument 'temprature'.*temperature"):
        await ask(Person, "Who?", temprature=1)
    with pytest.raises(ValueError, match="at least 1"):
        await ask(Person, "Who?", max_attempts=0)
    assert not model.requests


async def test_plain_words_take_what_makes_sense_for_them() -> None:
    model = FakeModel(["Hello", "Hello"])
    router = Router({"fake": model})
    given: Any = {"system": "Be kind.", "temperature": 0.0, "seed": 1, "max_tokens": 5, "timeout": 3.0}
    assert Client("fake/m", router=router).text("Hi", **given) == "Hello"
    assert await AsyncClient("fake/m", router=router).text("Hi", **given) == "Hello"
    assert model.requests[0] == model.requests[1]
    assert (model.requests[0].timeout, model.requests[0].sampling.seed) == (3.0, 1)
    wrong: Any = {"max_attempts": 2}
    with pytest.raises(TypeError, match="max_attempts"):
        Client("fake/m", router=router).text("Hi", **wrong)


@pytest.mark.covers("S1-55", "S2-08")
@pytest.mark.parametrize("face", ["ask", "stream", "async"])
async def test_a_timeout_stops_the_call_under_way(face: str) -> None:
    with FakeVendor([hang()]) as vendor, HttpProvider("openai", base_url=vendor.base_url, api_key="any") as provider:
        router = Router({"openai": provider})
        client, twin = Client("openai/gpt-5", router=router), AsyncClient("openai/gpt-5", router=router)

        async def call() -> object:
            if face == "ask":
                return client.ask(Person, "Who?", timeout=0.2)
            if face == "stream":
                return client.stream(Person, "Who?", timeout=0.2).result
            return await twin.ask(Person, "Who?", timeout=0.2)

        with pytest.raises(UpstreamTimeout, match=r"within 0\.\d+ s") as caught:
            await call()
        assert caught.value.report is not None


def test_a_client_takes_its_configuration_from_a_file_or_from_settings(tmp_path: Path) -> None:
    text = "default_model: mine/m\nproviders: {mine: {kind: vllm, base_url: 'http://127.0.0.1:9'}}\n"
    (tmp_path / "a.yaml").write_text(text + "enforcement: {max_attempts: 4, max_seconds: 9}\n")
    for config in (tmp_path / "a.yaml", str(tmp_path / "a.yaml"), read_settings(text)):
        with Client(config=config) as client:
            assert client.router.resolve(None)[1] == "m"
    with Client(config=tmp_path / "a.yaml") as client:
        assert client.options.budget == Budget(4, 9)
    with Client(config=tmp_path / "a.yaml", options=Options()) as client:
        assert client.options.budget == Budget()


@pytest.mark.covers("C02")
def test_every_setting_of_the_enforcement_is_used() -> None:
    settings = read_settings(
        "enforcement: {max_seconds: 5, max_tokens: 6, max_cost: 0.5, formatter: local, reask_scope: parts, tools: pass,"
        " on_failure: raw, patches: {units: true}}\nprices: {'a/*': {input: 1.0, output: 2.0}}\n"
    )
    options = options_of(settings)
    assert options.budget == Budget(3, 5, 6, 0.5)
    assert (options.formatter, options.reask_scope, options.tools) == ("local", "parts", "pass")
    assert (options.on_failure, options.switches.units) == ("raw", True)
    assert options.prices == {"a/*": Price(1.0, 2.0)}


def test_a_provider_may_have_a_time_limit_of_its_own() -> None:
    settings = read_settings(
        "runtime: {timeout_seconds: 50}\nproviders:\n  a: {kind: vllm, base_url: 'http://x', timeout_seconds: 7}\n"
        "  b: {kind: vllm, base_url: 'http://x'}\n"
    )
    router = router_of(settings, {})
    limits = []
    for name in "ab":
        provider = router.providers[name]
        assert isinstance(provider, HttpProvider)
        limits.append(provider.timeouts.total)
    assert limits == [7, 50]
    router.close()


@pytest.mark.covers("S2-64")
def test_prices_give_the_cost_and_the_budget_heeds_it() -> None:
    answers = [ModelResponse(text=text, usage=Usage(1000, 100)) for text in (BAD, BAD, ADA)]
    prices = {"other/*": Price(99, 99), "fake/m*": Price(2.0, 10.0), "*": Price(1, 1)}
    router = Router({"fake": FakeModel(answers)}, aliases={"fast": "fake/m1"})
    options = Options(budget=Budget(attempts=3), prices=prices)
    result = Client("fast", router=router, options=options).ask_full(Person, "Who?")
    assert result.report.cost == pytest.approx(3 * (1000 * 2.0 + 100 * 10.0) / 1e6)
    assert result.report.to_dict()["cost"] == result.report.cost
    router = Router({"fake": FakeModel(answers)})
    options = Options(budget=Budget(attempts=3, money=0.005), prices=prices)
    with pytest.raises(SchemaViolationError, match="budget of money is spent") as caught:
        Client("fake/m1", router=router, options=options).ask(Person, "Who?")
    assert caught.value.details["attempts"] == 2


def test_without_a_price_or_a_count_the_cost_is_not_known() -> None:
    for prices, usage in (({"x/*": Price(1, 1)}, Usage(1, 1)), ({"*": Price(1, 1)}, Usage())):
        router = Router({"fake": FakeModel([ModelResponse(text=ADA, usage=usage)])})
        result = Client("fake/m", router=router, options=Options(prices=prices)).ask_full(Person, "Who?")
        assert result.report.cost is None
