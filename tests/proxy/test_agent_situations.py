"""Every situation of the agents' table, whole and streamed, in all four APIs: exactly what reaches the agent."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from slipform.testing import Answer, FakeVendor
from slipform.testing.vendor import Received
from slipform.testing.wire_formats import SHAPES
from tests.proxy.agent_situations import LEADS, ROWS, TOOLS, Situation, said
from tests.proxy.agent_wire import APIS, Said, StreamReader, agent_request, compact, read_whole
from tests.proxy.test_live_tools import proxied
from tests.proxy.wire import Reply, post

SITUATIONS = [
    dataclasses.replace(row, lead=lead)
    for row in ROWS
    for lead in LEADS
    if row.answer is None or lead in ("", "thinking")  # words before an answer in a shape are no part of it
]


class Agents:
    """A proxy before a vendor that plays the row which a model is named for."""

    def __init__(self) -> None:
        self.rows: dict[str, Situation] = {}
        self.requests: Counter[str] = Counter()
        self.address = ""

    def script(self, received: Received) -> Answer:
        name = received.json()["model"]
        row, at = self.rows[name], self.requests[name]
        self.requests[name] += 1
        answer = row.answers[min(at, len(row.answers) - 1)]
        parts, fields = answer if isinstance(answer, tuple) else (answer, {})
        lead = LEADS[row.lead] if at == 0 else ()
        ending = {key: value for key, value in fields.items() if key != "cut"}
        response = said([*lead, *parts], **ending)
        if "cut" not in fields:
            return Answer(response)
        if not received.json().get("stream"):
            return Answer(response, cut_after=3, ending="cut")
        events = SHAPES["openai"].events
        before = len(list(events(response, 4))) - len(list(events(said(parts, **ending), 4)))
        return Answer(response, cut_after=fields["cut"] + before, ending="cut")

    def ask(self, row: Situation, api: str, *, stream: bool) -> tuple[Reply, int]:
        """What came back, and how many requests it took."""
        name = f"row-{len(self.rows)}"
        self.rows[name] = row
        model = f"up/{name}"
        path, body = agent_request(api, TOOLS, model=model, stream=stream, choice=row.choice, answer=row.answer)
        return post(self.address, path, body), self.requests[name]


@pytest.fixture(scope="module")
def agents() -> Iterator[Agents]:
    played = Agents()
    with FakeVendor(played.script) as vendor, proxied(vendor, "openai-compatible", "m") as address:
        played.address = address
        yield played


def lead_words(row: Situation, kind: str) -> list[str]:
    """The words, or the thinking, of the row's lead."""
    if kind == "think":
        return [part[1] for part in LEADS[row.lead] if not isinstance(part, str)]
    return [part for part in LEADS[row.lead] if isinstance(part, str)]


def expected_stream(row: Situation, api: str) -> list[tuple[Any, ...]]:
    """The sequence of the row's lead, in pieces of four characters, and of what is streamed after it."""
    sequence: list[tuple[Any, ...]] = []
    for part in LEADS[row.lead]:
        kind, words = ("text", part) if isinstance(part, str) else part
        sequence += [(kind, words[at : at + 4]) for at in range(0, len(words), 4)]
    # A text in place of a call that was given up stands apart from the words before it.
    apart = row.requests > 1 and row.answer is None and isinstance(row.answers[-1][0], str) and lead_words(row, "text")
    for run in row.left:
        kind, pieces = run[0], run[2:].split("|")
        for piece in pieces:
            words = f"\n\n{piece}" if kind == "t" and apart else piece
            sequence.append(("text" if kind == "t" else int(kind), words))
    if api == "chat":
        return [piece for each in sequence for piece in in_two(*each)]
    return whole_calls(sequence) if api == "gemini" else sequence


def in_two(kind: Any, words: str) -> list[tuple[Any, ...]]:
    """A call that leaves whole does so in two pieces: some clients read a piece only when another has come."""
    whole = not isinstance(kind, str) and words[0] == "{" and is_json(words)
    return [(kind, words[:-1]), (kind, words[-1])] if whole else [(kind, words)]


def whole_calls(sequence: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The same where calls leave whole, with their last piece; one that has no end does not leave."""
    out: list[tuple[Any, ...]] = []
    so_far: dict[int, str] = {}
    order: list[int] = []
    for kind, words in sequence:
        if isinstance(kind, str):
            out.append((kind, words))
            continue
        so_far[kind] = so_far.get(kind, "") + words
        if is_json(so_far[kind]):
            order.append(kind)
            out.append((len(order) - 1, compact(json.loads(so_far[kind]))))
    return out


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def names_and_values(said: Said) -> list[tuple[str, Any]]:
    return sorted((name, compact(json.loads(arguments))) for name, arguments in said.calls)


def finish_of(row: Situation, api: str) -> str:
    return "stop" if row.finish == "tool_calls" and api in ("responses", "gemini") else row.finish


@pytest.mark.parametrize("row", SITUATIONS, ids=[f"{row.name}, {row.lead or 'no lead'}" for row in SITUATIONS])
def test_what_reaches_the_agent_in_every_api(row: Situation, agents: Agents) -> None:
    for api in APIS:
        reply, requests = agents.ask(row, api, stream=True)
        expected = expected_stream(row, api)
        if reply.status == 200:
            heard = StreamReader(api).read(reply.events())
        else:
            heard = read_whole(api, reply.status, reply.json())
            assert not expected, "an error before the first byte is a plain one"
        assert (heard.sequence, requests) == (expected, row.requests), api
        assert (heard.error is not None) is row.error
        assert row.error or heard.finish == finish_of(row, api)

        reply, requests = agents.ask(row, api, stream=False)
        whole = read_whole(api, reply.status, reply.json())
        assert requests == (row.whole_requests or row.requests)
        if row.error and row.whole is None:
            assert whole.error is not None
            continue
        assert (whole.error, whole.finish) == (None, finish_of(row, api))
        if row.whole is None:
            assert names_and_values(whole) == names_and_values(heard)
        else:
            assert whole.calls == list(row.whole)
        if row.whole_text is None:
            assert (whole.text, whole.thought) == (heard.text, heard.thought)
        else:
            assert (whole.text, whole.thought) == (row.whole_text, heard.thought if row.requests == 1 else "")
