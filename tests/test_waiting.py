"""Tests wait for what they assert (`waiting.py`); time passes only where it is the subject."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import steady, steady_async, turns, until, until_async

TESTS = Path(__file__).parent
PAUSES = {
    "waiting.py": {"until", "until_async", "steady", "steady_async"},  # between two looks at a condition
    "proxy/console_server.py": {"PacedModel.complete_async", "PacedModel.stream_async"},  # a model to be looked at
    "proxy/talking.py": {"Wire.drip"},  # a client that sends drop by drop
    "proxy/test_connection.py": {
        "test_a_request_may_come_byte_by_byte",  # what is sent at once would arrive at once
        "test_requests_for_another_protocol_are_answered_in_this_one_bodies_included",
    },
    "proxy/test_hostile.py": {"test_heads_past_the_limit_are_refused_however_they_come"},  # so too
    "providers/network/test_event_loops.py": {"test_the_limit_of_the_first_byte_is_over_with_it"},  # a limit of time
    "providers/network/test_on_body.py": {
        "pieces",  # a server that paces its pieces, and a client that takes them so
        "test_who_wants_no_more_gets_no_more_until_it_asks_again",
        "test_a_silence_longer_than_allowed_is_told_after_the_last_piece_not_the_first",  # limits of time
        "test_the_total_time_counts_however_much_arrives",
    },
    "runner/test_batch_kill.py": {
        "test_killed_again_and_again_at_random_moments_it_has_every_row_once"  # the moment is the subject
    },
    "runner/test_batch_ray.py": {"Crowd.__call__"},  # calls that take a while, so that many are under way
}
"""Where a test lets time pass, and why. Before you add a line: can it wait for an event, or for a condition?"""


def pauses_in(path: Path) -> Iterator[str]:
    """The functions that sleep for longer than a turn of the event loop, by their names in the file."""

    def walk(node: ast.AST, names: tuple[str, ...]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from walk(child, (*names, child.name))
                continue
            if isinstance(child, ast.Call) and ast.unparse(child.func).rpartition(".")[2] == "sleep":
                is_a_turn = [ast.unparse(each) for each in child.args] == ["0"]
                if not is_a_turn:
                    classes = names[:2] if names and names[0][:1].isupper() else names[:1]
                    yield ".".join(classes)
            yield from walk(child, names)

    return walk(ast.parse(path.read_text(encoding="utf-8")), ())


def test_tests_wait_for_conditions_and_not_for_time() -> None:
    found = {
        path.relative_to(TESTS).as_posix(): names for path in TESTS.rglob("*.py") if (names := set(pauses_in(path)))
    }
    assert found == PAUSES


def test_a_condition_is_waited_for_and_no_longer_than_allowed() -> None:
    looks = iter([False, False, True])
    assert until(lambda: next(looks))
    assert not until(lambda: False, seconds=0)
    raising = iter([0, 1])
    assert until(lambda: 1 / next(raising), ignoring=(ZeroDivisionError,))
    with pytest.raises(ZeroDivisionError):
        until(lambda: 1 / 0)
    falling = iter([3, 2, 1, 1])
    assert steady(lambda: next(falling)) == 1


async def test_the_event_loop_goes_on_meanwhile() -> None:
    done: list[int] = []
    task = asyncio.create_task(_count(done))
    assert await until_async(lambda: len(done) >= 3)

    async def is_longer() -> bool:
        return len(done) >= 4

    assert await until_async(is_longer)
    assert not await until_async(lambda: False, seconds=0)
    task.cancel()
    assert await steady_async(lambda: len(done)) == len(done)


async def _count(done: list[int]) -> None:
    while True:
        done.append(1)
        await turns(1)
