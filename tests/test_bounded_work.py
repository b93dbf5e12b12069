"""An answer costs bounded, linear work, whatever it is: through `loads`, `ask`, streams and the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
from bench._hostile_texts import SHAPES

from slipform import AsyncClient, Budget, Client, Options, loads
from slipform.enforce import judging
from slipform.errors import EnforcementError, JsonEnforcementError, SlipformError, WorkLimitError
from slipform.providers.router import Router
from slipform.schema import Schema
from slipform.testing import FakeModel
from slipform.text.parser import Parser
from slipform.text.work import WorkBudget, bounded_work
from tests.proxy.proxying import chat, proxied

OBJECT: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "name": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
ROWS: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
        "required": ["id"],
    },
}
UNION: dict[str, Any] = {"anyOf": [OBJECT, ROWS, {"type": "string", "maxLength": 5}]}
SCALAR: dict[str, Any] = {"type": ["string", "null"], "maxLength": 5}
SCHEMAS: dict[str, Schema[Any] | None] = {
    "none": None,
    "object": Schema.of(OBJECT),
    "array": Schema.of(ROWS),
    "union": Schema.of(UNION),
    "scalar": Schema.of(SCALAR),
}
EVERY_SIXTH = dict(list(SHAPES.items())[::6])
ENCODABLE = {name: shape for name, shape in SHAPES.items() if "\ud83d" not in shape.unit}
SEVERAL_SECONDS_BEFORE = (
    "open fences",
    "open fences of lists",
    "closed fences",
    "fences of both kinds",
    "an open fence and blanks",
    "objects and lists",
    "objects before closing tags",
    "objects in prose",
    "citations",
    "sets",
    "NaN",
    "grouped digits",
    "keys in two strings",
    "strings that restart",
    "lists with wrong closers",
    "keys without end",
    "other closers that nothing opened",
)


def test_there_are_many_shapes() -> None:
    assert len(EVERY_SIXTH) >= 30
    assert len(SHAPES) >= 150


def _load(text: str, schema: Schema[Any] | None) -> WorkBudget:
    """The work that a text costs; one that takes too much is refused."""
    budget = WorkBudget(0)
    try:
        with bounded_work(len(text)) as budget:
            loads(text, schema)
    except SlipformError:
        pass
    return budget


def _growth(names: Iterable[str], kind: str, sizes: tuple[int, ...]) -> list[str]:
    """The texts whose work grows faster than their length, trials aside, which have a bound of their own."""
    faster: list[str] = []
    for name in names:
        shape = SHAPES[name]
        budgets = [_load(shape.text(size), SCHEMAS[kind]) for size in sizes]
        if any(budget.spent > 2 * budget.limit for budget in budgets):
            faster.append(f"{name}, {kind}: {budgets[-1].spent} units of {budgets[-1].limit}")
        if len(shape.before) + len(shape.after) >= sizes[0]:
            continue  # the part that is repeated is not in all of them
        work = [budget.spent - budget.trials_spent for budget in budgets]
        for at, (size, larger) in enumerate(pairwise(sizes)):
            if work[at + 1] > 1.5 * work[at] * larger / size + 500_000:
                faster.append(f"{name}, {kind}: {work[at]} units at {size}, {work[at + 1]} at {larger}")
    return faster


def test_work_grows_with_the_length_of_a_text() -> None:
    assert _growth(SHAPES, "none", (300, 1_200, 4_800)) == []
    assert _growth(EVERY_SIXTH, "union", (300, 1_200, 4_800)) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", SCHEMAS)
def test_work_grows_with_the_length_of_any_text(kind: str) -> None:
    assert _growth(SHAPES, kind, (2_000, 20_000, 200_000)) == []


def _processor_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def test_texts_that_took_seconds_cost_a_bounded_time() -> None:
    """A hundred times what a linear pass over 20 KB takes; before, some of these took minutes."""
    slow = {
        f"{name}, {kind}": seconds
        for name in SEVERAL_SECONDS_BEFORE
        for kind in ("union",)
        if (seconds := _processor_seconds(lambda: _load(SHAPES[name].text(20_000), SCHEMAS[kind]))) > 3  # noqa: B023
    }
    assert slow == {}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("size", [2_000, 20_000, 200_000])
def test_every_text_costs_a_bounded_time(size: int) -> None:
    slow = {
        f"{name}, {kind}": seconds
        for name, shape in SHAPES.items()
        for kind, schema in SCHEMAS.items()
        if (seconds := _processor_seconds(lambda: _load(shape.text(size), schema))) > 2 + size / 10_000  # noqa: B023
    }
    assert slow == {}


def test_an_answer_beyond_the_budget_is_refused_in_words() -> None:
    text = "[" * 900 + "}" * 60_000
    with pytest.raises(
        WorkLimitError, match=r"too much work, at an answer of 60,900 characters. Ask the model"
    ) as error:
        loads(text)
    assert error.value.details["characters"] == len(text)
    assert isinstance(error.value, JsonEnforcementError)


def test_the_same_text_costs_the_same_work() -> None:
    text = SHAPES["closed fences of broken objects"].text(4_000)
    assert _load(text, SCHEMAS["union"]).spent == _load(text, SCHEMAS["union"]).spent > 0


def test_an_ordinary_answer_costs_a_small_part_of_its_budget() -> None:
    rows = ", ".join(f"{{id: {number}, 'name': 'Ada \"the {number}th\" Lovelace',}}" for number in range(500))
    for text in (f"Sure!\n```json\n[{rows}]\n```\nDone.", f"Here they are: [{rows}"):
        budget = _load(text, SCHEMAS["array"])
        assert 0 < budget.spent < budget.limit / 4


# -- the faces


def _ask(texts: list[str], schema: Any) -> list[str]:
    """What was wrong with how these answers ended; each must be a value or a failure of enforcement."""
    wrong: list[str] = []
    client = Client(router=Router({"fake": FakeModel(texts)}), options=Options(budget=Budget(attempts=1)))
    for text in texts:
        try:
            client.ask(schema, "Go.", model="fake/m")
        except EnforcementError:
            continue
        except Exception as error:  # noqa: BLE001 — this is what is looked for
            wrong.append(f"{type(error).__name__}: {error} for {text[:60]!r}")
    return wrong


def test_ask_ends_in_a_value_or_a_failure_of_enforcement() -> None:
    texts = [shape.text(size) for shape in EVERY_SIXTH.values() for size in (300, 1_200, 4_800)]
    assert _ask(texts, UNION) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ask_ends_in_a_value_or_a_failure_of_enforcement_for_every_text() -> None:
    texts = [shape.text(size) for shape in SHAPES.values() for size in (2_000, 20_000, 200_000)]
    assert [wrong for schema in (OBJECT, UNION) for wrong in _ask(texts, schema)] == []


def _statuses(shapes: dict[str, Any], sizes: tuple[int, ...], **fields: Any) -> list[str]:
    """The answers of a proxy that are neither valid nor an error in the API's shape."""
    texts = [(f"{name}, {size}", shape.text(size)) for name, shape in shapes.items() for size in sizes]
    wrong: list[str] = []
    with proxied({"fake": FakeModel([text for _, text in texts])}, attempts=1) as address:
        for name, _ in texts:
            reply = chat(address, **fields)
            if reply.status not in (200, 422) or (reply.status == 422 and "message" not in reply.json["error"]):
                wrong.append(f"{name}: {reply.status} {reply.body[:200]!r}")
            if fields.get("stream") and b"An unexpected error" in reply.body:
                wrong.append(f"{name}: {reply.body[-300:]!r}")
    return wrong


@pytest.mark.parametrize("stream", [False, True])
def test_the_proxy_answers_with_a_value_or_an_error_of_its_api(stream: bool) -> None:
    shapes = {name: shape for name, shape in EVERY_SIXTH.items() if name in ENCODABLE}
    sizes = (300, 4_800) if stream else (300, 1_200, 4_800)
    assert _statuses(shapes, sizes, stream=stream) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("stream", [False, True])
def test_the_proxy_answers_every_text_with_a_value_or_an_error_of_its_api(stream: bool) -> None:
    assert _statuses(ENCODABLE, (2_000, 20_000, 200_000), stream=stream) == []


def test_the_proxys_error_says_what_happened_and_what_to_do() -> None:
    with proxied({"fake": FakeModel(["[" * 900 + "}" * 60_000])}, attempts=1) as address:
        reply = chat(address)
    assert reply.status == 422
    assert "takes too much work" in reply.json["error"]["message"]
    assert "Ask the model for one JSON document" in reply.json["error"]["message"]


def test_a_growing_text_is_parsed_whatever_it_is() -> None:
    for shape in EVERY_SIXTH.values():
        text, parser = shape.text(1_200), Parser(lenient=True)
        for start in range(0, len(text), 16):
            parser = parser.feed(text[start : start + 16])
            _ = parser.value
        _ = parser.finish().value


# -- what stays on the event loop


@pytest.fixture
def judging_threads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each answer that is judged: whether that happens on the thread of the event loop."""
    threads: list[bool] = []
    judge = judging.judge

    def watched(*given: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return judge(*given)

    monkeypatch.setattr("slipform.enforce.loop.judge", watched)
    return threads


VALID = "[" + ",".join(f'{{"id":{number},"name":"Ada"}}' for number in range(2_000)) + "]"


@pytest.mark.parametrize(
    ("answer", "on_loop"),
    [
        ('[{"id": 1}]', True),
        ("[{id: 1,}]", True),
        (VALID, True),
        (f"```json\n{VALID}\n```", False),
        (VALID.replace('"id":7,', '"id":"7",'), False),
        ("```json\n{\n" * 1_000, False),
    ],
    ids=["small", "small and broken", "valid", "in a fence", "to be patched", "hostile"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_only_what_is_small_or_valid_as_written_is_judged_on_the_event_loop(
    judging_threads: list[bool], answer: str, on_loop: bool, stream: bool
) -> None:
    async def ask() -> None:
        client = AsyncClient(router=Router({"fake": FakeModel([answer])}), options=Options(budget=Budget(attempts=1)))
        try:
            if not stream:
                await client.ask(ROWS, "Go.", model="fake/m")
                return
            async with client.stream(ROWS, "Go.", model="fake/m") as running:
                async for _ in running:
                    pass
        except EnforcementError:
            pass

    asyncio.run(ask())
    assert judging_threads == [on_loop]


# -- inputs that once ended in an exception of another kind


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ('{"a":' * 900 + "]" * 1_100, ROWS),
        ('{"a":' * 400, UNION),
        ('{\\"a\\": ' * 400, UNION),
        ('{"function": {"function": ' * 300, OBJECT),
        ('{"function": {}}', OBJECT),
        ('\'a\': :...+</a>/*“-->&quot;\ufeff"a" "b"', UNION),
        ("[" * 990 + "1" + "]" * 990, {"type": "array"}),
        ("[" * 1_000 + "/*a", ROWS),
        ('{"a":1}' + "}" * 20_000 + ', "b": 2', OBJECT),
    ],
)
def test_no_text_ends_in_an_error_of_another_kind(text: str, schema: dict[str, Any]) -> None:
    assert _ask([text], schema) == []
    with contextlib.suppress(SlipformError):
        loads(text, schema)
