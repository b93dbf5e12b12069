"""Every marker of reasoning is the same to every reader of answers."""

from __future__ import annotations

import pytest

from slipform.text.fence import JsonFenceDetector
from slipform.text.loads import load
from slipform.text.parser import Parser

TAGS = [
    "think", "thinking", "thought", "thoughts", "reasoning", "reason", "reflection", "scratchpad", "analysis",
    "rationale", "inner_monologue", "internal_monologue", "inner_thoughts", "chain_of_thought", "cot", "antThinking",
    "seed:think", "longcat_think",
]  # fmt: skip
BLOCKS = [
    *((f"<{tag}>", f"</{tag}>") for tag in TAGS),
    ("<THINK>", "</think>"),
    ('<think effort="high">', "</think >"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>commentary<|message|>", "<|end|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
]
DRAFT = 'Maybe {"draft": [1, 2]}, or a list: ["no"].'
ANSWER = '{"answer": [42, "yes"]}'


def by_loads(text: str) -> object:
    return load(text).value


def by_lenient_parser(text: str) -> object:
    parser = Parser(lenient=True)
    for character in text:
        parser = parser.feed(character)
    return parser.finish().value


def by_fence_detector(text: str) -> object:
    detector, found = JsonFenceDetector(), ""
    for character in text:
        detector.add_chunk(character)
        found += detector.process().delta
    return load(found + detector.finish().delta).value


@pytest.mark.parametrize("read", [by_loads, by_lenient_parser, by_fence_detector])
@pytest.mark.parametrize(("opening", "closing"), BLOCKS)
@pytest.mark.parametrize("around", ["", "\n"])
def test_a_draft_in_reasoning_is_never_the_answer(read: object, opening: str, closing: str, around: str) -> None:
    text = f"{opening}{around}{DRAFT}{around}{closing}{around}{ANSWER}"
    assert callable(read)
    assert read(text) == {"answer": [42, "yes"]}


@pytest.mark.parametrize(("opening", "closing"), [("", "</think>"), ("", "[/THINK]"), ("", "◁/think▷")])
def test_an_unpaired_end_of_reasoning_makes_a_draft_of_what_came_before(opening: str, closing: str) -> None:
    assert by_loads(f"{opening}{DRAFT}{closing}{ANSWER}") == {"answer": [42, "yes"]}
