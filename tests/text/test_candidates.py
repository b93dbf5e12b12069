"""Where in a text the JSON may be."""

from __future__ import annotations

import pytest

from slipform.text.candidates import Candidate, candidates


def _texts(text: str) -> list[str]:
    return [candidate.text for candidate in candidates(text)]


@pytest.mark.covers("S0-49", "S0-67", "S2-37", "S2-39", "C05", "C07")
def test_balanced_blocks_are_found_in_order_with_their_place() -> None:
    text = 'One {"a": "}"} two ["]", 1] three'
    assert list(candidates(text)) == [
        Candidate(4, 14, '{"a": "}"}', "bare"),
        Candidate(19, 27, '["]", 1]', "bare"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "See [1] and [2].",
        "Dear {name}, [note] the {thing}",
        "- [ ] one\n- [x] two",
        "[link](http://example.org)",
        "set {x | x > 0}",
        "{{name}}",
        "a [sic] b",
        "if (x) { return y; }",
    ],
)
def test_brackets_of_prose_are_no_candidates(text: str) -> None:
    assert _texts(text) == []


@pytest.mark.covers("S2-38")
@pytest.mark.parametrize("label", ["json", "JSON", "", "js", "jsonc"])
def test_fences_of_any_label_are_unwrapped(label: str) -> None:
    assert next(candidates(f'Hi\n```{label}\n{{"a": 1}}\n```\n')).kind == "fenced"
    assert _texts(f'Hi\n```{label}\n{{"a": 1}}\n```\n') == ['{"a": 1}']


def test_fenced_json_comes_before_json_in_prose() -> None:
    assert _texts('Not {"draft": 1} but\n```json\n{"a": 1}\n```') == ['{"a": 1}', '{"draft": 1}']


def test_fences_inside_strings_are_left_alone() -> None:
    body = '{"code": "```py\nprint(1)\n```", "n": 1}'
    assert _texts(f"```json\n{body}\n```") == [body]


@pytest.mark.parametrize("tag", ["think", "thinking", "reasoning", "THINK"])
def test_reasoning_blocks_are_passed_over(tag: str) -> None:
    assert _texts(f'<{tag}>{{"draft": 1}}</{tag}> {{"a": 1}}') == ['{"a": 1}']


def test_what_stands_before_an_unpaired_end_of_thought_is_thought() -> None:
    assert _texts('{"draft": 1} hmm </think> {"a": 1}') == ['{"a": 1}']


def test_an_unclosed_thought_is_used_only_when_there_is_nothing_else() -> None:
    found = list(candidates('<think>{"draft": 1} so {"a": 1}'))
    assert [candidate.text for candidate in found] == ['{"a": 1}', '{"draft": 1}']
    assert {candidate.kind for candidate in found} == {"thought"}
    assert _texts('{"b": 2} <think>{"draft": 1}') == ['{"b": 2}']


@pytest.mark.covers("S2-36")
def test_tags_and_tool_call_wrappers_are_unwrapped() -> None:
    assert [candidate.kind for candidate in candidates('<answer>{"a": 1}</answer>')] == ["tagged"]
    assert _texts('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>') == ['{"name": "f", "arguments": {}}']
    assert _texts('[TOOL_CALLS] [{"name": "f"}]') == ['[{"name": "f"}]']


def test_several_documents_in_a_row_are_one_sequence() -> None:
    assert [candidate.kind for candidate in candidates('{"a": 1}\n{"a": 2}')] == ["sequence"]
    assert len(_texts('{"a": 1} and then {"a": 2}')) == 2


def test_broken_json_is_a_candidate_too() -> None:
    assert _texts("Take {'a': [1, 2,], b: None} please") == ["{'a': [1, 2,], b: None}"]
    assert _texts('Cut: {"a": [1, {"b": "c') == ['{"a": [1, {"b": "c']


@pytest.mark.parametrize("text", ["", "no JSON here", "{", "[1"])
def test_short_texts(text: str) -> None:
    assert _texts(text) == ([text] if text in ("{", "[1") else [])


def test_a_cut_answer_whose_keys_have_several_words_is_not_taken_for_a_sentence() -> None:
    text = 'Answer: {the full name: {"first": "Ada"}'
    assert _texts(text) == [text[8:]]
