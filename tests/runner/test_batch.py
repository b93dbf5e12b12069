"""A dataset in, validated JSON out: order, failures, pauses, going on, other formats."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel, field_validator

from slipform.addons.batch.outputs import JsonLinesFile
from slipform.addons.batch.scheduler import GiveUpPolicy
from slipform.config import Settings, read_settings
from slipform.errors import (
    AuthenticationError,
    ConfigError,
    RateLimitError,
    SlipformError,
    TooLargeError,
    UpstreamError,
)
from slipform.ir import ModelRequest, ModelResponse, Usage
from slipform.providers.router import Router
from slipform.runner import Summary, batch
from slipform.testing import FakeModel, FakeVendor, Received, rate_limited, server_error
from slipform.testing.vendor import Step
from tests.conftest import PERSON
from tests.runner.conftest import (
    answer,
    answer_http,
    asked_for,
    fake_router,
    person,
    read_rows,
    settings_of,
    write_rows,
)

ONCE = read_settings("retries: {attempts: 0}")


def ask_all(
    folder: Path,
    model: FakeModel,
    *,
    source: str = "in.jsonl",
    out: str = "out.jsonl",
    prompt: str | None = "Who is {name}",
    key: str | None = None,
    concurrency: int = 4,
    retry_failures: bool = False,
    limit: int | None = None,
    schema: Any = PERSON,
    settings: Settings = ONCE,
) -> Summary:
    return batch(
        folder / source,
        schema=schema,
        out=folder / out,
        prompt=prompt,
        key=key,
        concurrency=concurrency,
        retry_failures=retry_failures,
        limit=limit,
        settings=settings,
        router=fake_router(model),
    )


class Shuffled(FakeModel):
    """Answers out of order."""

    async def complete_async(self, request: ModelRequest) -> ModelResponse:
        for _ in range(asked_for(request.messages[-1].text) * 7 % 11):
            await asyncio.sleep(0)
        return self.complete(request)


def test_results_come_in_the_order_of_the_rows_whoever_finishes_first(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 200)
    summary = ask_all(tmp_path, Shuffled(answer), concurrency=8)
    rows = read_rows(tmp_path / "out.jsonl")
    assert [row["row"] for row in rows] == list(range(1, 201))
    assert [row["value"] for row in rows] == [json.loads(person(number)) for number in range(1, 201)]
    journal = (tmp_path / "out.jsonl.journal").read_text().splitlines()[1:]
    finished = [json.loads(line)["done"]["row"] for line in journal]
    assert finished != sorted(finished)
    assert (summary.rows, summary.done, summary.failed) == (200, 200, 0)
    assert not (tmp_path / "out.jsonl.failures.jsonl").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl", "out.jsonl.journal"]


def test_a_finished_job_asks_nothing_again(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 20)
    ask_all(tmp_path, FakeModel(answer))
    before = (tmp_path / "out.jsonl").read_bytes()
    idle = FakeModel(answer)
    summary = ask_all(tmp_path, idle)
    assert (idle.requests, summary.done, summary.rows) == ([], 0, 20)
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_results_that_were_lost_are_made_again_from_the_journal(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 20)
    ask_all(tmp_path, FakeModel(answer))
    whole = (tmp_path / "out.jsonl").read_bytes()
    (tmp_path / "out.jsonl").write_bytes(whole[:-30])
    idle = FakeModel(answer)
    ask_all(tmp_path, idle)
    assert (tmp_path / "out.jsonl").read_bytes() == whole
    assert idle.requests == []


@pytest.mark.parametrize("stop", [1, 7, 19])
def test_after_a_stop_only_the_rest_is_asked(tmp_path: Path, stop: int) -> None:
    write_rows(tmp_path / "in.jsonl", 20)

    def until(request: ModelRequest) -> str | Exception:
        return AuthenticationError("no key") if len(model.requests) == stop else answer(request)

    model = FakeModel(until)
    with pytest.raises(AuthenticationError):
        ask_all(tmp_path, model, concurrency=1)
    assert [row["row"] for row in read_rows(tmp_path / "out.jsonl")] == list(range(1, stop))
    rest = FakeModel(answer)
    ask_all(tmp_path, rest, concurrency=3)
    assert [asked_for(request.messages[-1].text) for request in rest.requests] == list(range(stop, 21))
    assert [row["row"] for row in read_rows(tmp_path / "out.jsonl")] == list(range(1, 21))


def test_rows_added_to_the_input_are_done_too(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 5)
    ask_all(tmp_path, FakeModel(answer))
    write_rows(tmp_path / "in.jsonl", 8)
    rest = FakeModel(answer)
    ask_all(tmp_path, rest)
    assert len(rest.requests) == 3
    assert [row["row"] for row in read_rows(tmp_path / "out.jsonl")] == list(range(1, 9))


def test_a_limit_can_be_raised_later(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 8)
    assert ask_all(tmp_path, FakeModel(answer), limit=3).rows == 3
    rest = FakeModel(answer)
    assert ask_all(tmp_path, rest).done == len(rest.requests) == 5
    assert ask_all(tmp_path, FakeModel(answer), limit=2).done == 0
    assert len(read_rows(tmp_path / "out.jsonl")) == 8


@pytest.mark.parametrize("change", ["swapped", "edited", "shorter"])
def test_another_input_is_refused(tmp_path: Path, change: str) -> None:
    path = write_rows(tmp_path / "in.jsonl", 5)
    ask_all(tmp_path, FakeModel(answer))
    lines = path.read_text().splitlines(keepends=True)
    changed = {"swapped": lines[::-1], "edited": [*lines[:4], lines[4].replace("P5", "P6")], "shorter": lines[:3]}
    path.write_text("".join(changed[change]))
    with pytest.raises(ConfigError, match=r"Row \d is not what it was|has 3 rows now, and row 4 is done"):
        ask_all(tmp_path, FakeModel(answer))


def test_another_job_on_the_same_output_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 2)
    ask_all(tmp_path, FakeModel(answer))
    with pytest.raises(ConfigError, match="another job: its prompt differed"):
        ask_all(tmp_path, FakeModel(answer), prompt="Who was {name}")
    with pytest.raises(ConfigError, match="another job: its schema differed"):
        ask_all(tmp_path, FakeModel(answer), schema={"type": "object"})


def test_failures_have_their_own_file_and_are_tried_alone(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 30)

    def weak(request: ModelRequest) -> str:
        return "no idea" if asked_for(request.messages[-1].text) % 10 == 3 else answer(request)

    summary = ask_all(tmp_path, FakeModel(weak))
    assert (summary.done, summary.failed) == (30, 3)
    failures = read_rows(tmp_path / "out.jsonl.failures.jsonl")
    assert [(row["row"], row["input"]["name"], row["error"]["code"]) for row in failures] == [
        (3, "P3", "not_json"),
        (13, "P13", "not_json"),
        (23, "P23", "not_json"),
    ]
    assert 13 not in [row["row"] for row in read_rows(tmp_path / "out.jsonl")]

    better = FakeModel(lambda request: "no" if asked_for(request.messages[-1].text) == 13 else answer(request))
    summary = ask_all(tmp_path, better, retry_failures=True)
    assert [asked_for(request.messages[-1].text) for request in better.requests] == [3, 13, 23]
    assert (summary.done, summary.failed) == (3, 1)
    assert [row["row"] for row in read_rows(tmp_path / "out.jsonl.failures.jsonl")] == [13]
    assert [row["row"] for row in read_rows(tmp_path / "out.jsonl")] == [n for n in range(1, 31) if n != 13]

    assert ask_all(tmp_path, FakeModel(answer), retry_failures=True).failed == 0
    assert [row["row"] for row in read_rows(tmp_path / "out.jsonl")] == list(range(1, 31))
    assert not (tmp_path / "out.jsonl.failures.jsonl").exists()
    idle = FakeModel(answer)
    assert ask_all(tmp_path, idle, retry_failures=True).done == 0
    write_rows(tmp_path / "in.jsonl", 33)
    assert ask_all(tmp_path, idle).done == len(idle.requests) == 3
    assert [row["row"] for row in read_rows(tmp_path / "out.jsonl")] == list(range(1, 34))


def test_failures_are_retried_after_the_job_is_finished_only(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 5)
    ask_all(tmp_path, FakeModel(answer), limit=2)
    with pytest.raises(ConfigError, match="row 3 was never processed"):
        ask_all(tmp_path, FakeModel(answer), retry_failures=True)


class Grown(BaseModel):
    name: str
    age: int

    @field_validator("age")
    @classmethod
    def _old_enough(cls, age: int) -> int:
        if age < 3:
            raise ValueError("too young")
        return age


def test_a_types_own_validators_count(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 4)
    summary = ask_all(tmp_path, FakeModel(answer), schema=Grown)
    assert summary.failed == 2
    errors = [row["error"]["message"] for row in read_rows(tmp_path / "out.jsonl.failures.jsonl")]
    assert all("too young" in error for error in errors)


def test_a_bad_answer_is_asked_again_as_the_config_says(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 1)
    model = FakeModel(["what?", person(1)])
    settings = read_settings("retries: {attempts: 1, backoff_seconds: 0}")
    assert ask_all(tmp_path, model, settings=settings).failed == 0
    assert len(model.requests) == 2


@pytest.mark.usefixtures("vendor_key")
def test_when_the_vendor_asks_to_slow_down_every_row_waits_and_none_is_lost(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 60)
    arrivals: list[float] = []

    def script(received: Received) -> Step:
        arrivals.append(0)
        return rate_limited(retry_after_ms=30) if 10 <= len(arrivals) < 18 else answer_http(received)

    with FakeVendor(script) as vendor:
        summary = batch(
            tmp_path / "in.jsonl",
            schema=PERSON,
            out=tmp_path / "out.jsonl",
            prompt="Who is {name}",
            concurrency=8,
            settings=settings_of(vendor),
        )
        asked = len(vendor.requests)
    assert (summary.done, summary.failed, asked) == (60, 0, 68)
    assert [row["row"] for row in read_rows(tmp_path / "out.jsonl")] == list(range(1, 61))


@pytest.mark.parametrize(
    "error",
    [
        RateLimitError("quota", details={"retryable": False}),
        RateLimitError("slow down", retry_after=3600),
        AuthenticationError("no key", status=401),
        UpstreamError("no such model", status=404),
    ],
)
def test_what_no_row_can_get_past_stops_the_job(tmp_path: Path, error: SlipformError) -> None:
    write_rows(tmp_path / "in.jsonl", 50)
    model = FakeModel([error])
    with pytest.raises(type(error), match=error.message):
        ask_all(tmp_path, model)
    assert len(model.requests) <= 4
    assert ask_all(tmp_path, FakeModel(answer)).done == 50


@pytest.mark.usefixtures("vendor_key")
def test_a_server_that_fails_is_asked_again_and_then_the_row_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipform.addons.batch.scheduler.GiveUpPolicy", lambda: GiveUpPolicy(pause=0.001))
    write_rows(tmp_path / "in.jsonl", 3)
    tries: dict[int, int] = {}

    def script(received: Received) -> Step:
        number = asked_for(received.json()["messages"][-1]["content"])
        tries[number] = tries.get(number, 0) + 1
        if number == 2 or (number == 3 and tries[3] < 3):
            return server_error(503)
        return answer_http(received)

    with FakeVendor(script) as vendor:
        summary = batch(
            tmp_path / "in.jsonl",
            schema=PERSON,
            out=tmp_path / "out.jsonl",
            prompt="Who is {name}",
            settings=settings_of(vendor),
        )
    assert tries == {1: 1, 2: 4, 3: 3}
    assert summary.failed == 1
    assert read_rows(tmp_path / "out.jsonl.failures.jsonl")[0]["error"]["code"] == "upstream_error"


def test_keys_come_from_a_column(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 3)
    ask_all(tmp_path, FakeModel(answer), key="name")
    assert [row["key"] for row in read_rows(tmp_path / "out.jsonl")] == ["P1", "P2", "P3"]


def test_keys_that_come_twice_are_an_error_before_the_first_call(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": 1, "name": "P1"}\n{"id": 1, "name": "P2"}\n')
    model = FakeModel(answer)
    with pytest.raises(ConfigError, match="'1' comes twice in the column 'id', the second time in row 2"):
        ask_all(tmp_path, model, key="id")
    assert model.requests == []


@pytest.mark.parametrize(
    ("prompt", "content", "said"),
    [
        ("Who is {nam}", '{"name": "P1"}\n', "The columns are: name"),
        ("Who is {name", '{"name": "P1"}\n', "brace"),
        ("Who is {name}", '{"name": "P1"}\nnonsense\n', "not JSON"),
    ],
)
def test_mistakes_are_found_before_the_first_call(tmp_path: Path, prompt: str, content: str, said: str) -> None:
    (tmp_path / "in.jsonl").write_text(content)
    model = FakeModel(answer)
    with pytest.raises(ConfigError, match=said):
        ask_all(tmp_path, model, prompt=prompt)
    assert model.requests == []


def test_missing_values_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "in.jsonl").write_text('{"name": "P1", "city": "Rome"}\n{"name": "P2"}\n{"name": "P3", "city": null}\n')
    model = FakeModel(answer)
    with caplog.at_level(logging.WARNING):
        ask_all(tmp_path, model, prompt="[{city}] {name}", concurrency=1)
    assert "column='city', rows=2 of 3" in caplog.text
    assert [request.messages[-1].text for request in model.requests] == ["[Rome] P1", "[] P2", "[] P3"]


def test_an_empty_input_gives_an_empty_output(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("")
    assert ask_all(tmp_path, FakeModel(answer)).rows == 0
    assert (tmp_path / "out.jsonl").read_bytes() == b""


@pytest.mark.parametrize("source", ["in.csv", "in.parquet", "in.jsonl"])
@pytest.mark.parametrize("out", ["out.parquet", "out.jsonl"])
def test_every_input_goes_to_every_output(tmp_path: Path, source: str, out: str) -> None:
    rows = [{"id": number, "name": f"P{number}"} for number in range(1, 6)]
    if source == "in.csv":
        (tmp_path / source).write_text("id,name\n" + "".join(f"{row['id']},{row['name']}\n" for row in rows))
    elif source == "in.parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / source)
    else:
        write_rows(tmp_path / source, 5)
    ask_all(tmp_path, FakeModel(answer), source=source, out=out, key="id")
    found = pq.read_table(tmp_path / out).to_pylist() if out == "out.parquet" else read_rows(tmp_path / out)
    assert found == [{"row": n, "key": str(n), "value": {"name": f"P{n}", "age": n}} for n in range(1, 6)]


def test_parquet_is_there_when_it_is_whole(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 10)

    def until(request: ModelRequest) -> str | Exception:
        return AuthenticationError("no key") if len(model.requests) == 6 else answer(request)

    model = FakeModel(until)
    with pytest.raises(AuthenticationError):
        ask_all(tmp_path, model, out="out.parquet", concurrency=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.parquet.journal"]
    rest = FakeModel(answer)
    ask_all(tmp_path, rest, out="out.parquet")
    assert len(rest.requests) == 5
    assert pq.read_table(tmp_path / "out.parquet").column("row").to_pylist() == list(range(1, 11))


def test_each_model_of_a_list_has_its_own_price(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 2)
    spent = Usage(7, 5)
    dear = FakeModel([ModelResponse(text="no", usage=spent)], name="dear")
    cheap = FakeModel(lambda request: ModelResponse(text=answer(request), usage=spent), name="cheap")
    prices = "prices: {'dear/*': {input: 1000000, output: 0}, 'cheap/*': {input: 0, output: 1000000}}"
    summary = batch(
        tmp_path / "in.jsonl",
        schema=PERSON,
        out=tmp_path / "out.jsonl",
        prompt="Who is {name}",
        model=["dear/m", "cheap/m"],
        settings=read_settings(f"retries: {{attempts: 0}}\n{prices}"),
        router=Router({"dear": dear, "cheap": cheap}),
    )
    assert summary.cost == 2 * (7 + 5)


@pytest.mark.usefixtures("vendor_key")
def test_the_cost_is_known_where_prices_are(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 2)
    with FakeVendor(answer_http) as vendor:
        summary = batch(
            tmp_path / "in.jsonl",
            schema=PERSON,
            out=tmp_path / "out.jsonl",
            prompt="Who is {name}",
            settings=settings_of(vendor, "prices: {'fake/*': {input: 1000000, output: 2000000}}"),
        )
    assert (summary.usage.input, summary.usage.output) == (14, 10)
    assert summary.cost == 14 + 20


def test_names_that_mean_nothing_are_told(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 1)
    with pytest.raises(ConfigError, match="Unsupported output format"):
        ask_all(tmp_path, FakeModel(answer), out="out.txt")
    with pytest.raises(ConfigError, match=r"missing\.json"):
        ask_all(tmp_path, FakeModel(answer), schema="missing.json")
    with pytest.raises(ConfigError, match="generic_list"):
        ask_all(tmp_path, FakeModel(answer), schema="nothing")
    with pytest.raises(ConfigError, match="at least one call"):
        ask_all(tmp_path, FakeModel(answer), concurrency=0)


def test_files_of_others_are_not_written_over(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 2)
    before = source.read_bytes()
    model = FakeModel(answer)
    with pytest.raises(ConfigError, match="three files"):
        ask_all(tmp_path, model, out="in.jsonl")
    assert source.read_bytes() == before
    for name in ("out.jsonl", "out.jsonl.failures.jsonl"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(ConfigError, match="no journal says"):
            ask_all(tmp_path, model)
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()
    assert model.requests == []


def test_a_row_the_request_of_which_cannot_be_made_fails_alone(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 3)
    model = FakeModel(
        lambda request: TooLargeError("too long") if "P2" in request.messages[-1].text else answer(request)
    )
    assert ask_all(tmp_path, model).failed == 1
    assert read_rows(tmp_path / "out.jsonl.failures.jsonl")[0]["error"]["code"] == "too_large"


def test_ray_makes_its_own_router(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 1)
    with pytest.raises(ConfigError, match="router"):
        batch(
            tmp_path / "in.jsonl",
            schema=PERSON,
            out=tmp_path / "out.jsonl",
            engine="ray",
            router=fake_router(FakeModel(answer)),
        )


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 1)
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ConfigError, match=r"cannot be written.*taken"):
        ask_all(tmp_path, FakeModel(answer), out="taken/out.jsonl")


def test_a_damaged_line_of_the_journal_costs_its_row_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_rows(tmp_path / "in.jsonl", 40)
    ask_all(tmp_path, FakeModel(answer))
    journal = tmp_path / "out.jsonl.journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[11] = lines[11].replace(b'"name"', b'"mane"')
    journal.write_bytes(b"".join(lines))
    again = FakeModel(answer)
    summary = ask_all(tmp_path, again)
    assert len(again.requests) == summary.done == 1
    assert "lines=1" in caplog.text
    assert [row["row"] for row in read_rows(tmp_path / "out.jsonl")] == list(range(1, 41))
    once_more = FakeModel(answer)
    assert ask_all(tmp_path, once_more).done == 0


def test_a_damaged_first_line_of_the_journal_is_told_and_no_row_is_asked_again(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 5)
    ask_all(tmp_path, FakeModel(answer))
    journal = tmp_path / "out.jsonl.journal"
    damaged = journal.read_bytes().replace(b'"schema"', b'"shcema"', 1)
    journal.write_bytes(damaged)
    again = FakeModel(answer)
    with pytest.raises(ConfigError, match="first line of the journal"):
        ask_all(tmp_path, again)
    assert again.requests == []
    assert journal.read_bytes() == damaged


def test_a_changed_row_is_noticed_by_its_content_where_keys_come_from_a_column(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_rows(tmp_path / "in.jsonl", 20)
    ask_all(tmp_path, FakeModel(answer), key="id")
    lines = (tmp_path / "in.jsonl").read_text().splitlines()
    lines[6] = json.dumps({"id": 7, "name": "P77"})
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    again = FakeModel(answer)
    summary = ask_all(tmp_path, again, key="id")
    assert (summary.done, summary.changed, len(again.requests)) == (1, 1, 1)
    assert "rows changed since they were done, rows=1" in caplog.text
    found = read_rows(tmp_path / "out.jsonl")
    assert [row["row"] for row in found] == list(range(1, 21))
    assert found[6]["value"]["name"] == "P77"
    assert ask_all(tmp_path, FakeModel(answer), key="id").changed == 0


def test_a_changed_row_that_had_failed_is_no_longer_counted_as_failed(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 5)
    broken = FakeModel(lambda request: "no" if "P3" in request.messages[-1].text else answer(request))
    assert ask_all(tmp_path, broken, key="id").failed == 1
    lines = (tmp_path / "in.jsonl").read_text().splitlines()
    lines[2] = json.dumps({"id": 3, "name": "P33"})
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    summary = ask_all(tmp_path, FakeModel(answer), key="id")
    assert (summary.changed, summary.failed) == (1, 0)


@pytest.mark.parametrize("room", [1, 99, 250, 70_000])
def test_a_full_disk_leaves_the_results_with_whole_lines(tmp_path: Path, room: int) -> None:
    path = tmp_path / "out.jsonl"
    written = JsonLinesFile(path)
    written.write(b'{"row":0}')
    written.flush()
    assert written._file is not None
    written._file = Full(written._file, room)  # type: ignore[assignment]

    def fill() -> None:
        for number in range(1, 10_000):
            written.write(b'{"row":%d,"value":"some text"}' % number)
            if room < 1_000:
                written.flush()

    with pytest.raises(ConfigError, match="No space left on device"):
        fill()
    written.close(complete=False)
    rows = [row["row"] for row in read_rows(path)]
    assert path.read_bytes().endswith(b"}\n")
    assert rows == list(range(len(rows)))
    assert path.stat().st_size <= room + 10


class Full:
    """A file on a disk with so many bytes left."""

    def __init__(self, file: IO[bytes], room: int) -> None:
        self._file = file
        self._room = room

    def write(self, data: bytes) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._file.write(data[: self._room])
        self._room -= written
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
