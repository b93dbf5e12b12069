"""Valid answers to real-world schemas leave as they grow, in every vendor's dialect; invalid ones never leave whole."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest
from bench.live_schemas import DIALECTS, FOLDER, entries, measure, released_early

from slipform.enforce import Budget, Plan, Switches, enforce
from slipform.enforce.stream import EnforcedCall, Release
from slipform.errors import SlipformError
from slipform.ir import CompletionChunk, Lift, ModelRequest
from slipform.schema import Schema
from slipform.schema.lowering import lower
from tests.schema.lowering_encode import encode

NAME = "real_world.jsonl"
pytestmark = pytest.mark.skipif(not (FOLDER / NAME).is_file(), reason="the real-world schemas are not at ../shared")
SAMPLES: Final = [pytest.param(20, id="sample"), pytest.param(1, id="all", marks=pytest.mark.slow)]


def test_most_of_an_answer_leaves_before_its_end_and_every_value_is_right() -> None:
    for dialect, figures in measure(NAME, every=5).items():
        assert figures.wrong == [], dialect
        assert figures.schemas >= 40, dialect
        assert figures.mean_share >= 0.85, dialect
        assert figures.streaming >= 0.93 * figures.schemas, dialect


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def indented(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def escaped(value: Any) -> str:
    """JSON with every letter of its strings and keys written as `\\uXXXX`."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{escaped(key)}: {escaped(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(escaped, value)) + "]"
    if not isinstance(value, str):
        return json.dumps(value)
    units = value.encode("utf-16-be", "surrogatepass")
    codes = [units[at : at + 2].hex() for at in range(0, len(units), 2)]
    return '"' + "".join(f"\\u{code}" for code in codes) + '"'


SPELLINGS: Final[Mapping[str, Callable[[Any], str]]] = {"compact": compact, "indented": indented, "escaped": escaped}


def read_schemas(every: int) -> Iterator[tuple[str, Schema[Any], list[dict[str, Any]]]]:
    for entry in list(entries(NAME))[::every]:
        try:
            schema = Schema.of(entry["schema"])
        except SlipformError:
            continue
        yield entry["id"], schema, entry["tests"]


def lifts_of(schema: Schema[Any], value: Any) -> Iterator[tuple[str, Lift | None, Any]]:
    """The caller's own shape, then each dialect that can express the value: its lift, and the value in its shape."""
    yield "own", None, value
    for dialect in DIALECTS:
        try:
            lowered = lower(schema.document, dialect, open_objects="auto")
            encoded = encode(lowered, value)
        except SlipformError:
            continue
        if not lowered.identity:
            yield dialect, Lift(lowered.schema, lowered.lift, lowered.plan), encoded


@pytest.mark.parametrize("every", SAMPLES)
def test_valid_answers_are_delivered_in_any_pieces_and_any_spelling(every: int) -> None:
    rng = random.Random(11)
    wrong: list[str] = []
    streams = 0
    for name, schema, tests in read_schemas(every):
        for value in [test["data"] for test in tests if test["valid"]]:
            for dialect, lift, encoded in lifts_of(schema, value):
                for spelling, write in SPELLINGS.items():
                    streams += 1
                    try:
                        _, whole = released_early(schema, lift, write(encoded), rng)
                    except SlipformError as error:
                        wrong.append(f"{name}, {dialect}, {spelling}: {type(error).__name__}: {error}")
                        continue
                    if json.loads(whole) != value:
                        wrong.append(f"{name}, {dialect}, {spelling}: another value")
    assert wrong == []
    assert streams >= 100


def released_of_invalid(schema: Schema[Any], switches: Switches, text: str, rng: random.Random) -> tuple[str, bool]:
    """What is released of one answer, and whether it is delivered."""
    plan = Plan(schema, budget=Budget(attempts=1), switches=switches)
    call = EnforcedCall(enforce(ModelRequest("m", ()), plan), plan, streaming=True, release=Release(answer=True))
    reader = call.read()
    released: list[str] = []
    at = 0
    while at < len(text) and not reader.stopped:
        size = rng.randint(1, 12)
        released += [chunk.text for chunk in reader.push([CompletionChunk(text[at : at + size])]) or ()]
        at += size
    if not reader.stopped:
        reader.push([CompletionChunk(finish="stop")])
    try:
        call.answer(reader.response())
    except SlipformError:
        return "".join(released), False
    closing, _ = call.last()
    return "".join(released) + "".join(chunk.text for chunk in closing), True


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("every", SAMPLES)
def test_invalid_answers_are_never_released_whole(every: int) -> None:
    """With patches an answer may be corrected; what is delivered then is valid."""
    rng = random.Random(13)
    wrong: list[str] = []
    streams = 0
    for name, schema, tests in read_schemas(every):
        for value in [test["data"] for test in tests if not test["valid"] and not schema.fits(test["data"])]:
            for switches in (Switches(), Switches.none()):
                for spelling, write in SPELLINGS.items():
                    streams += 1
                    released, is_delivered = released_of_invalid(schema, switches, write(value), rng)
                    if is_delivered and (switches == Switches.none() or not schema.fits(json.loads(released))):
                        wrong.append(f"{name}, {spelling}: delivered {released[:80]}")
                    if not is_delivered and is_json(released):
                        wrong.append(f"{name}, {spelling}: released {released[:80]}")
    assert wrong == []
    assert streams >= 100
