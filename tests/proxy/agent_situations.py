"""What can happen between an agent, its tools and a model: a table of scripted answers and of what reaches the agent.

A vendor writes the answers of a row one after the other, in pieces of four characters. `LEADS` stand before the first
answer of a row and change nothing but what is said before it, so that every row is a situation with each of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slipform.ir import ModelResponse, Reasoning, Text, ToolCall, Usage
from tests.conftest import PERSON

TOOLS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["c", "f"]}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "search": {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 10},
            "within": {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}}},
        },
        "required": ["query"],
    },
    "ping": {"type": "object", "properties": {}, "additionalProperties": False},
}
LEADS: dict[str, tuple[Any, ...]] = {
    "": (),
    "words": ("Let me look.",),
    "many words": ("First I look it up, then I tell you: 100 % certain, as ever.",),
    "thinking": (("think", "The user asks."),),
    "thinking and words": (("think", "Hm, well."), "One moment."),
}


@dataclass(frozen=True, slots=True)
class Situation:
    """One row: what the vendor answers and what the agent gets."""

    name: str
    answers: tuple[Any, ...]
    """Each a list of words, `("think", words)` and calls `(tool, arguments)`; or that and how it ends, as a mapping."""
    left: tuple[str, ...] = ()
    """What is streamed after the lead: `t:` and words, or the number of a call and arguments; `|` between events."""
    finish: str = "tool_calls"
    requests: int = 1
    whole_requests: int | None = None
    """How many requests an answer takes that comes whole, where that differs."""
    error: bool = False
    """Whether it ends with an error."""
    whole_text: str | None = None
    """The text of an answer that comes whole, where it is the last one alone, without the first one's lead."""
    whole: tuple[tuple[str, str], ...] | None = None
    """The calls of an answer that comes whole, where they are not those that are streamed."""
    choice: str | None = None
    answer: Any = None
    lead: str = ""

    def calls(self) -> list[tuple[int, list[str]]]:
        """The streamed calls: each one's number and the pieces of its arguments."""
        return [(int(run[0]), run[2:].split("|")) for run in self.left if run[0] != "t"]


def said(parts: Sequence[Any], **fields: Any) -> ModelResponse:
    """An answer of these parts, in their order."""
    made: list[Any] = []
    for at, part in enumerate(parts):
        if isinstance(part, str):
            made.append(Text(part))
        else:
            made.append(Reasoning(part[1]) if part[0] == "think" else ToolCall(f"call_{at}", *part))
    calls = tuple(part for part in made if isinstance(part, ToolCall))
    return ModelResponse(
        text="".join(part.text for part in made if isinstance(part, Text)),
        reasoning="".join(part.text for part in made if isinstance(part, Reasoning)),
        tool_calls=calls,
        parts=tuple(made),
        usage=Usage(input=7, output=5, total=12),
        **{"finish": "tool_calls" if calls else "stop", **fields},
    )


def one(name: str, arguments: str, *left: str, tool: str = "weather", whole: str | None = None) -> Situation:
    """A call that is valid or can be made so."""
    return Situation(name, ([(tool, arguments)],), left, whole=None if whole is None else ((tool, whole),))


def again(name: str, *calls: tuple[str, str], left: str) -> Situation:
    """A call that is asked for again until it is right."""
    return Situation(name, tuple([call] for call in calls), (left,), requests=len(calls), whole_text="")


OSLO = ("weather", '{"city": "Oslo"}')
ROME = ("weather", '{"city": "Rome"}')
NOWHERE = ("weather", '{"days": 3}')
FOUND = ("search", '{"query": "x"}')
OSLO_LEFT = '0:{"city":"Os|lo"|}'
ROME_LEFT = '1:{"city":"Ro|me"|}'
OSLO_WHOLE, ROME_WHOLE = ("weather", '{"city":"Oslo"}'), ("weather", '{"city":"Rome"}')
CODE = 'def f():\n    return "é"  # \U0001f600 \\ end\n'
ADA = '{"name": "Ada", "age": 36}'

ROWS: tuple[Situation, ...] = (
    # Nothing is wrong.
    Situation("words only", (["It rains."],), ("t:It r|ains|.",), finish="stop"),
    one("a call", OSLO[1], OSLO_LEFT),
    one(
        "a call with all its keys",
        '{"city": "Oslo", "unit": "c", "days": 3}',
        '0:{"city":"Os|lo"|,"unit":"c"|,"days":3|}',
    ),
    one("a call over several lines", '{\n  "city": "Oslo",\n  "days": 3\n}', '0:{|"city":"Osl|o"|,"days":3|}'),
    one("a call without arguments", "", "0:{}", tool="ping"),
    one("a call with an empty object", "{}", "0:{|}", tool="ping"),
    one(
        "a call with a nested object",
        '{"query": "x", "within": {"tags": ["a", "b"]}}',
        '0:{"query":"x|"|,"within":{"tags":["|a"|,"b"]|}|}',
        tool="search",
    ),
    one(
        "a call with escapes",
        '{"city": "K\\u00f8benhavn \\ud83d\\ude00\\n"}',
        '0:{"city":"K|\\u00f8ben|havn| |\\ud83d\\ude00\\n"|}',
    ),
    one(
        "a call with code in it",
        json.dumps({"query": CODE}, ensure_ascii=False),
        '0:{"query":"d|ef f|():|\\n   | ret|urn |\\"é|\\"  #| 😀 |\\\\ en|d\\n"|}',
        tool="search",
    ),
    one("a call that begins with an enum", '{"unit": "f", "city": "Oslo"}', '0:{"unit":"f"|,"city":"O|slo"|}'),
    Situation("two calls side by side", ([OSLO, ROME],), (OSLO_LEFT, ROME_LEFT)),
    Situation("three calls of three tools", ([OSLO, ("ping", ""), FOUND],), (OSLO_LEFT, "1:{}", '2:{"query":"x|"|}')),
    Situation("the same call twice", ([OSLO, OSLO],), (OSLO_LEFT, '1:{"city":"Os|lo"|}')),
    Situation("a call, then words", ([OSLO, "There."],), (OSLO_LEFT, "t:Ther|e.")),
    Situation("words between two calls", ([OSLO, "And Rome:", ROME],), (OSLO_LEFT, "t:And |Rome|:", ROME_LEFT)),
    # Malformed arguments that can be made valid.
    one("arguments in a fence", f"```json\n{OSLO[1]}\n```", OSLO_LEFT),
    one("single quotes", "{'city': 'Oslo'}", '0:{"city":"Oslo"}'),
    one("keys without quotes", '{city: "Oslo"}', '0:{"city":"Oslo"}'),
    one("a comma too many", '{"city": "Oslo", "days": 3,}', '0:{"city":"Os|lo"|,"days":3}'),
    one("a bracket missing", '{"city": "Oslo"', OSLO_LEFT),
    one("a number as text", '{"city": "Oslo", "days": "3"}', '0:{"city":"Os|lo"|,"days":3}'),
    one("an enum in capitals", '{"city": "Oslo", "unit": "C"}', '0:{"city":"Os|lo"|,"unit":"c"}'),
    one("a key in capitals", '{"City": "Oslo"}', '0:{"city":"Oslo"}'),
    one("a key that is not allowed", '{"city": "Oslo", "mood": "good"}', OSLO_LEFT),
    one("null for a key that may be absent", '{"city": "Oslo", "unit": null}', OSLO_LEFT),
    one("arguments in a string", json.dumps(OSLO[1]), '0:{"city":"Oslo"}'),
    Situation("two calls, one malformed", ([("weather", "{'city': 'Oslo'}"), ROME],), ('0:{"city":"Oslo"}', ROME_LEFT)),
    # Malformed arguments, and tools, that have to be asked for again.
    again("the wrong type", ("weather", '{"city": ["Oslo", "Bergen"]}'), OSLO, left='0:{"city":"Oslo"}'),
    again("a missing key", NOWHERE, OSLO, left='0:{"city":"Oslo"}'),
    again("an unknown value", ("weather", '{"city": "Oslo", "unit": "kelvin"}'), OSLO, left=OSLO_LEFT),
    again(
        "a number out of range",
        ("search", '{"query": "x", "limit": 99}'),
        ("search", '{"query": "x", "limit": 9}'),
        left='0:{"query":"x|"|,"limit":9}',
    ),
    again("no JSON at all", ("weather", "Oslo, please"), OSLO, left='0:{"city":"Oslo"}'),
    again("an unknown tool", ("fly", '{"to": "Oslo"}'), OSLO, left='0:{"city":"Oslo"}'),
    again("wrong twice", NOWHERE, ("weather", "[]"), OSLO, left='0:{"city":"Oslo"}'),
    Situation(
        "an unknown tool, then words",
        ([("fly", "{}")], ["I cannot fly."]),
        ("t:I cannot fly.",),
        finish="stop",
        requests=2,
        whole_text="I cannot fly.",
    ),
    Situation("wrong every time", ([NOWHERE],), requests=3, error=True),
    Situation("an unknown tool every time", ([("fly", "{}")],), requests=3, error=True),
    Situation(
        "a correction that does not begin like what was sent",
        ([("weather", '{"city": "Oslo", "unit": "kelvin"}')], [ROME]),
        ('0:{"city":"Os|lo"',),
        requests=3,
        whole_requests=2,
        error=True,
        whole_text="",
        whole=(ROME_WHOLE,),
    ),
    # Two calls, one bad.
    Situation("the second is wrong", ([OSLO, NOWHERE], [ROME]), (OSLO_LEFT, '1:{"city":"Rome"}'), requests=2),
    Situation(
        "the second is wrong, both are made again",
        ([OSLO, NOWHERE], [OSLO, ROME]),
        (OSLO_LEFT, '1:{"city":"Rome"}'),
        requests=2,
    ),
    Situation(
        "the first is wrong",
        ([NOWHERE, ROME], [OSLO, ROME]),
        ('0:{"city":"Oslo"}', '1:{"city":"Rome"}'),
        requests=2,
    ),
    Situation(
        "both are wrong",
        ([NOWHERE, ("search", "{}")], [OSLO, FOUND]),
        ('0:{"city":"Oslo"}', '1:{"query":"x"}'),
        requests=2,
        whole_text="",
    ),
    Situation(
        "the second is of no tool and is given up",
        ([OSLO, ("fly", "{}")], ["Only Oslo, then."]),
        (OSLO_LEFT, "t:Only Oslo, then."),
        requests=2,
    ),
    # Cut, refused, filtered.
    Situation("cut in the words", ((["It rains today."], {"cut": 3}),), ("t:It r|ains",), requests=3, error=True),
    Situation("cut in the arguments", (([OSLO], {"cut": 5}),), ('0:{"city":"Os',), requests=3, error=True),
    Situation("a token limit in the words", ((["It rai"], {"finish": "length"}),), ("t:It r|ai",), finish="length"),
    # Calls that are required.
    Situation("a required call", ([OSLO],), (OSLO_LEFT,), choice="required"),
    Situation("a named call", ([OSLO],), (OSLO_LEFT,), choice="weather"),
    Situation("a named call in words", ([OSLO[1]],), ('0:{"city":"Oslo"}',), choice="weather", whole_text=""),
    Situation(
        "words where a call is required",
        (["It rains."], [OSLO]),
        ("t:It r|ains|.", '0:{"city":"Oslo"}'),
        choice="required",
        requests=2,
        whole_text="",
    ),
    # The answer has a shape as well.
    Situation("an answer in its shape", ([ADA],), ('t:{"name":"Ad|a"|,"age":36}',), finish="stop", answer=PERSON),
    Situation("a call beside a shape", ([OSLO],), (OSLO_LEFT,), answer=PERSON),
    Situation(
        "two calls beside a shape, one wrong",
        ([OSLO, NOWHERE], [ROME]),
        (OSLO_LEFT, '1:{"city":"Rome"}'),
        requests=2,
        answer=PERSON,
    ),
    Situation(
        "an answer in the wrong shape",
        (['{"name": "Ada"}'], [ADA]),
        ('t:{"name":"Ad|a","age":36}',),
        finish="stop",
        requests=2,
        answer=PERSON,
        whole_text='{"name":"Ada","age":36}',
    ),
)
