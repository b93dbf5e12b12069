"""`JsonFenceDetector`: document 000's machine, right where the original was wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.text.fence import FenceResult, JsonFenceDetector, StartFinder
from tests.conftest import examples


def run(chunks: list[str] | str, **options: Any) -> tuple[str, FenceResult, JsonFenceDetector]:
    """Everything passed on, the last result, and the detector, from a controller that stops when told to."""
    detector = JsonFenceDetector(**options)
    passed = ""
    for chunk in chunks:
        detector.add_chunk(chunk)
        result = detector.process()
        passed += result.delta
        if result.complete:
            return passed, result, detector
    result = detector.finish()
    return passed + result.delta, result, detector


@pytest.mark.covers("S0-22", "S0-37", "S0-38")
def test_it_goes_through_three_phases() -> None:
    detector = JsonFenceDetector()
    detector.add_chunk("Sure, ")
    assert detector.process() == FenceResult("", complete=False, waiting_for_start=True)
    assert detector.phase == "finding_start"
    detector.add_chunk('here: {"a"')
    assert detector.process() == FenceResult('{"a"', complete=False, waiting_for_start=False)
    assert detector.phase == "tracking_depth"
    detector.add_chunk(": 1} bye")
    assert detector.process() == FenceResult(": 1}", complete=True, waiting_for_start=False)
    assert detector.phase == "completed"


@pytest.mark.covers("S0-35", "S0-36", "S0-19", "S0-53", "S0-75")
def test_what_follows_the_json_is_ignored() -> None:
    detector = JsonFenceDetector()
    for chunk in ('[1, 2] or {"a": 1}', "more", ' {"b": 2}'):
        detector.add_chunk(chunk)
    assert detector.process() == FenceResult("[1, 2]", complete=True, waiting_for_start=False)
    detector.add_chunk("even more")
    assert detector.process() == FenceResult("", complete=True, waiting_for_start=False)


@pytest.mark.covers("S0-75")
def test_without_stop_after_json_the_rest_is_passed_on() -> None:
    detector = JsonFenceDetector(stop_after_json=False)
    detector.add_chunk("x [1] y")
    assert detector.process() == FenceResult("[1] y", complete=True, waiting_for_start=False)
    detector.add_chunk(" z")
    assert detector.process() == FenceResult(" z", complete=True, waiting_for_start=False)


@pytest.mark.covers("S0-17", "S0-18", "S0-26", "S0-27", "S0-67", "S0-72")
def test_the_prefix_is_kept_for_debugging_and_never_passed_on() -> None:
    passed, _, detector = run(list('Of course! {"a": 1}'))
    assert passed == '{"a": 1}'
    assert detector.prefix == "Of course! "


@pytest.mark.covers("S0-28", "S0-29", "S0-30", "S0-31", "S0-32", "S0-51", "S0-66", "S0-69", "S0-70", "S0-74")
@pytest.mark.parametrize(
    "text",
    [
        '{"a": "}"}',
        '{"a": "\\"}"}',
        '{"a": "\\\\"}',
        '{"a": "[{", "b": [[1], [2, {"c": "]"}]]}',
        '[["é", "漢字 😀"], []]',
        "[\n  {\n  }\n]",
        "{}",
        "[]",
        "[-1.5e3]",
        "[null, true]",
        "[false]",
    ],
)
def test_brackets_in_strings_and_nested_ones_do_not_end_it(text: str) -> None:
    for chunks in ([f"Here: {text} and }} ]"], list(f"Here: {text} and }} ]")):
        passed, result, _ = run(chunks)
        assert passed == text
        assert result.complete


@pytest.mark.covers("S0-33", "S0-34", "S0-68")
def test_only_the_bracket_that_matches_the_first_ends_it() -> None:
    assert run('{"a": 1] }x')[0] == '{"a": 1] }'
    passed, result, _ = run('{"a": [1')
    assert passed == '{"a": [1'
    assert not result.complete
    assert not result.failed


@pytest.mark.covers("C07", "S0-23")
@pytest.mark.parametrize(
    "prose",
    [
        "[note] ",
        "{name} ",
        "[[link]] ",
        "[12:30] ",
        "[2024-01-02] ",
        "[trust me] ",
        "[nullable] ",
        "{ see below } ",
        "[x] done [ok] ",
        'she said "this ',
        "it's {{template}} ",
        "a < b, <b>bold</b> ",
        "{",
    ],
)
def test_brackets_of_prose_are_not_json(prose: str) -> None:
    for chunks in ([prose + '{"a": 1}'], list(prose + '{"a": 1}')):
        passed, _, detector = run(chunks)
        assert passed == '{"a": 1}'
        assert detector.prefix == prose


@pytest.mark.covers("C07")
@pytest.mark.parametrize(
    "reasoning",
    [
        '<think>maybe {"a": 0}?</think>',
        "<THINK>\n[1, 2]\n</THINK>",
        '<thinking effort="high">{"a": [</thinking>\n```json\n',
        "<reasoning>{}</reasoning><think>[]</think>",
        '<think>İİİ {"a": 0}</Think>',
        '[THINK]{"a": 0} [1][/THINK]',
        "◁think▷[1]◁/think▷",
        '<|channel|>analysis<|message|>{"a": 0}<|end|><|start|>assistant<|channel|>final<|message|>',
        "<think>" + "x" * 5000 + '{"y": 1}</think>',
    ],
)
def test_json_in_reasoning_is_passed_over_and_does_not_count(reasoning: str) -> None:
    for chunks in ([reasoning + '{"a": 1}'], list(reasoning + '{"a": 1}')):
        passed, _, detector = run(chunks, fail_hard=True)
        assert passed == '{"a": 1}'
        assert detector.prefix == reasoning


def test_reasoning_that_never_ends_holds_no_answer() -> None:
    assert run('<think>{"a": 1}', fail_hard=True)[1].failed


@pytest.mark.covers("S0-24", "S0-25", "S0-52", "C06")
class TestPrefixLimit:
    def test_the_limit_counts_over_the_whole_stream(self) -> None:
        assert run("x" * 500 + "{}")[0] == "{}"
        for chunks in (["x" * 501 + "{}"], ["x"] * 501 + ["{}"], ["x" * 100] * 6 + ["{}"]):
            passed, result, _ = run(chunks, fail_hard=True)
            assert passed == ""
            assert result.failed
            assert not result.raw

    def test_without_fail_hard_the_text_is_passed_on_raw_and_whole(self) -> None:
        text = "y" * 60 + ' {"a": 1} tail'
        for chunks in ([text], list(text)):
            passed, result, detector = run(chunks, max_prefix_chars=50)
            assert passed == text
            assert result.failed
            assert result.raw
            assert detector.failed

    def test_fail_hard_keeps_the_text_for_debugging(self) -> None:
        passed, result, detector = run(["no JSON ", "at all"], fail_hard=True)
        assert (passed, result.failed) == ("", True)
        assert detector.prefix == "no JSON at all"

    def test_an_empty_stream_has_no_json(self) -> None:
        assert run([])[1].failed


@settings(max_examples=examples(160), deadline=None)
@given(
    st.text(alphabet='ab{}[]"<>/ \\1:', max_size=30),
    st.lists(st.integers() | st.text(max_size=4), max_size=3)
    | st.dictionaries(st.text(max_size=4), st.lists(st.text(max_size=4), max_size=2), max_size=3),
    st.lists(st.integers(0, 80)),
)
def test_any_chunking_passes_on_the_same(prose: str, value: Any, places: list[int]) -> None:
    text = prose + json.dumps(value) + prose
    at = sorted({place % len(text) for place in places})
    chunks = [text[start:stop] for start, stop in zip([0, *at], [*at, len(text)], strict=True)]
    whole, in_pieces = run([text]), run(chunks)
    assert whole[0] == in_pieces[0]
    assert whole[2].prefix == in_pieces[2].prefix
    assert whole[1].complete == in_pieces[1].complete


@pytest.mark.parametrize(
    "text", ["[" * 50_000, "<" * 50_000, "{ " * 50_000, "<think" * 10_000, "[1" * 20_000, "[ " * 30_000]
)
def test_hostile_prose_takes_linear_time(text: str) -> None:
    finder = StartFinder(loose=True)
    for start in range(0, len(text), 5):
        if finder.feed(text[start : start + 5]) is not None:
            break
    assert len(finder.text) <= len(text)


@pytest.mark.covers("C07")
@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    "text",
    [
        'He said "{" then {"a": 1}',
        'The char "[" opens a list: {"a": 1}',
        'Use `{` here: {"a": 1}',
        "Open with “{”, close with “}”: " + '{"a": 1}',
        'It reads "{"a": 1}"',
    ],
)
def test_a_quoted_bracket_does_not_open_the_json(text: str, size: int) -> None:
    detector, passed = JsonFenceDetector(), ""
    for at in range(0, len(text), size):
        detector.add_chunk(text[at : at + size])
        passed += detector.process().delta
    assert (passed + detector.finish().delta).startswith('{"a": 1}')
