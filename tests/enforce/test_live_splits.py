"""One scanner and one tracker behind parser and gate: how a text is cut into pieces changes nothing but the timing."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.enforce import ReleaseGate, Requirement, Switches, judge
from slipform.enforce.release import MAX_DEPTH
from slipform.errors import SlipformError
from slipform.ir import ModelResponse
from slipform.schema import Schema
from slipform.text.parser import Parser
from slipform.text.resolve_plan import NormalForm, form_of
from slipform.text.scanner import JsonScanner
from slipform.text.strict import compact_json
from slipform.text.tracker import Tracker
from tests.conftest import examples
from tests.text.test_parser import cut
from tests.text.test_resolve import json_values, schemas

NO_PATCHES = Switches(coerce=False, drop_extra=False, rename_keys=False, fill_constants=False)
CUTS = st.lists(st.integers(0, 80), max_size=12)
SPOILED = st.sampled_from(
    ['"', "\\", "\\u12", "\\ud800", "\n", "{", "}", "[", "]", ",", ":", "0", "-", ".", "e", "t", "null", " ", "é", "x"]
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """JSON in any spelling, or nearly."""
    text = json.dumps(draw(json_values), indent=draw(st.sampled_from([None, 1])), ensure_ascii=draw(st.booleans()))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(SPOILED) + text[at + draw(st.integers(0, 2)) :]
    return text


def scanned(text: str, places: list[int], tracker: Tracker) -> JsonScanner:
    """A scanner that has read the text in these pieces, as far as it would."""
    scanner = JsonScanner(MAX_DEPTH, tracker)
    for piece in cut(text, places):
        scanner.feed(piece)
        if scanner.stopped or scanner.complete or scanner.error is not None:
            break
    return scanner


def verdict_on(schema: Any, text: str, places: list[int], *, exact: bool) -> tuple[Any, ...]:
    """Everything but when it was noticed, and in which words."""
    tracker = Tracker(NormalForm(schema, exact=exact))
    scanner = scanned(text, places, tracker)
    where = None if tracker.mismatch is None else (tracker.mismatch.path, tracker.mismatch.patchable)
    return where, scanner.error, scanner.notes, scanner.complete and where is None


@settings(max_examples=examples(400), deadline=None)
@given(schemas, texts(), CUTS, st.booleans())
def test_the_verdict_is_the_same_however_the_text_is_cut(
    schema: Any, text: str, places: list[int], exact: bool
) -> None:
    whole = verdict_on(schema, text, [], exact=exact)
    for cuts in (places, list(range(len(text)))):
        pieces = verdict_on(schema, text, cuts, exact=exact)
        assert pieces[1:] == whole[1:]
        assert pieces[0] == whole[0] or is_named_so_far(pieces[0], whole[0])


def is_named_so_far(pieces: Any, whole: Any) -> bool:
    """Whether two mismatches are of one key, which in pieces is stopped, and named, as far as it has come."""
    if pieces is None or whole is None or pieces[1] != whole[1]:
        return False
    *parents, key = pieces[0]
    *same_parents, whole_key = whole[0]
    return parents == same_parents and isinstance(key, str) and str(whole_key).startswith(key)


@settings(max_examples=examples(300), deadline=None)
@given(texts(), CUTS, st.booleans())
def test_a_parser_reads_the_same_however_the_text_is_cut(text: str, places: list[int], lenient: bool) -> None:
    whole = parser = Parser(lenient=lenient)
    whole = whole.feed(text).finish()
    for piece in cut(text, places):
        parser = parser.feed(piece)
    parser = parser.finish()
    assert (parser.value, parser.error, parser.notes) == (whole.value, whole.error, whole.notes)


@settings(max_examples=examples(400), deadline=None)
@given(texts(), CUTS)
def test_parser_and_gate_agree_on_where_strict_json_breaks(text: str, places: list[int]) -> None:
    parser = Parser(max_depth=MAX_DEPTH).feed(text)
    scanner = scanned(text, places, Tracker(form_of(Schema.of({}))))
    if not parser.complete:
        assert scanner.error == parser.error
    elif scanner.error is None:  # what follows the value is not the gate's concern
        assert (scanner.complete, scanner.root.child(0)) == (True, parser.value)
    else:  # a number that goes on like none is none
        assert parser.error is not None
        assert scanner.error.index == parser.error.index


@settings(max_examples=examples(400), deadline=None)
@given(schemas, texts(), CUTS, st.sampled_from([Switches(), NO_PATCHES]))
def test_what_leaves_begins_the_judged_text_and_nothing_valid_is_refused(
    schema: Any, text: str, places: list[int], switches: Switches
) -> None:
    try:
        wanted = Schema.of(schema)
        verdict = judge(ModelResponse(text=text), Requirement(wanted, switches=switches))
    except SlipformError:
        return
    gates = ReleaseGate(wanted, switches), ReleaseGate(wanted, switches)
    left = ["".join(map(gates[0].feed, cut(text, places))), "".join(map(gates[1].feed, text))]
    assert left[1].startswith(left[0])
    parser = Parser().feed(text).finish()
    edits = () if verdict.patched is None else verdict.patched.edits
    # What a repair makes of a text need not begin like it, nor what is taken out of an object around it.
    if verdict.ok and parser.error is None and not parser.notes and all(edit.steps for edit in edits):
        assert gates[1].rest(compact_json(verdict.value)) is not None
        assert gates[1].fault is None or not gates[1].confirm_fault(Requirement(wanted, switches=switches))
