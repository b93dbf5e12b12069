"""What must hold for every text: faithful, idempotent, recorded, bounded."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.errors import JsonEnforcementError
from slipform.text.loads import load
from slipform.text.repair import repair
from slipform.text.repair.tokens import apply_edits
from tests.conftest import examples

TEXTS = st.text(max_size=12) | st.sampled_from(
    ["it's", 'q"q', "a, b: c", "{x}", "\\n", "```json", "</think>", "// x", "😀"]
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
CONTAINERS = st.lists(VALUES, max_size=4) | st.dictionaries(TEXTS, VALUES, max_size=4)
NEARLY_JSON = st.text(alphabet="{}[]\",:\\'\n/`<# +1a.-“e&;tn", max_size=60)


@settings(max_examples=examples(200), deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_what_was_dumped_is_loaded_again(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    loaded = load(text)
    assert loaded.value == value
    assert loaded.edits == ()
    assert repair(text).edits == ()


@settings(max_examples=examples(120), deadline=None)
@given(CONTAINERS, st.booleans())
def test_a_document_cut_anywhere_keeps_what_was_closed_and_invents_nothing(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    for cut in range(1, len(text)):
        loaded = load(text[:cut])
        assert _is_prefix(loaded.value, value), text[:cut]
        assert loaded.edits


def _is_prefix(part: Any, whole: Any) -> bool:
    if isinstance(part, dict):
        names = list(part)
        return (
            isinstance(whole, dict)
            and names == list(whole)[: len(names)]
            and all(part[name] == whole[name] for name in names[:-1])
            and (not names or _is_prefix(part[names[-1]], whole[names[-1]]))
        )
    if isinstance(part, list):
        return (
            isinstance(whole, list)
            and len(part) <= len(whole)
            and part[:-1] == whole[: max(0, len(part) - 1)]
            and (not part or _is_prefix(part[-1], whole[len(part) - 1]))
        )
    if isinstance(part, str):
        return isinstance(whole, str) and whole.startswith(part)
    if isinstance(part, int | float) and not isinstance(part, bool):
        return isinstance(whole, int | float) and not isinstance(whole, bool)
    return part is whole


@settings(max_examples=examples(200), deadline=None)
@given(CONTAINERS, st.randoms(use_true_random=False))
def test_damaged_json_is_repaired_on_record_or_refused(value: Any, rng: random.Random) -> None:
    characters = list(json.dumps(value, ensure_ascii=False))
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(characters))
        if rng.random() < 0.5:
            characters[at] = ""
        else:
            characters[at] += rng.choice("{}[]\",:\\'\n/`<# +1a.-“")
    _check("".join(characters))


@settings(max_examples=examples(200), deadline=None)
@given(NEARLY_JSON)
def test_any_text_is_repaired_on_record_or_refused(text: str) -> None:
    _check(text)


def _check(text: str) -> None:
    try:
        loaded = load(text, nan="null")
    except JsonEnforcementError:
        return
    if loaded.edits:
        assert apply_edits(text, loaded.edits, loaded.start, loaded.end) == loaded.source
    ends = [edit.position + len(edit.before) for edit in loaded.edits]
    assert all(end <= edit.position for end, edit in zip(ends, loaded.edits[1:], strict=False))
    again = repair(loaded.source)
    assert again.edits == ()
    assert again.value == loaded.value


HOSTILE = {
    "brackets": "[" * 1_000_000,
    "objects": '{"a":' * 200_000,
    "deep and valid": "[" * 500_000 + "]" * 500_000,
    "open string": '{"a": "' + "x" * 1_000_000,
    "backslashes": '{"a": "' + "\\" * 1_000_000,
    "quotes": '"' * 1_000_000,
    "quotes in an array": "[" + '"' * 1_000_000,
    "quotes and words": '{"a": "' + 'x" ' * 300_000,
    "braces in a string": '{"a": "' + "x}" * 500_000,
    "keys in a string": '{"a": "' + "foo, b: " * 125_000,
    "commas and quotes": '{"a": "' + '", ' * 300_000,
    "opening braces": "{ " * 500_000,
    "empty objects": "{}" * 100_000,
    "fences": "```json " * 125_000,
    "comments": "[" + "/*" * 500_000,
    "digits": "[" + "1" * 1_000_000,
    "commas": "[" + "," * 1_000_000,
    "words": "[" + "word " * 200_000,
    "half surrogates": '["' + "\\ud83d" * 160_000,
    "raw surrogates": '["' + "\ud83d" * 1_000_000,
    "thoughts": "<think>" * 140_000,
    "closed thoughts": "<think></think>" * 60_000,
    "mismatched": "[{" * 250_000 + "]}" * 250_000,
    "prose": "just some words. " * 60_000,
    "noise": "".join(random.Random(1).choices('{}[]",:\\ \n1a.-/`<', k=300_000)),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_done_with_in_bounded_time(text: str) -> None:
    """The normal test timeout is the bound; anything worse than linear in these sizes would run into it."""
    end = 0
    with contextlib.suppress(JsonEnforcementError):
        end = load(text).end
    assert end <= len(text)


RECORDS = st.lists(
    st.fixed_dictionaries({"id": st.integers(0, 10**9), "tags": st.lists(st.sampled_from(["a", "b"]), max_size=2)}),
    min_size=2,
    max_size=5,
    unique_by=lambda record: record["id"],
)


@settings(max_examples=examples(300), deadline=None)
@given(RECORDS, st.booleans(), st.randoms(use_true_random=False))
def test_a_closed_record_is_never_lost_to_a_wrong_bracket(
    records: list[dict[str, Any]], wrapped: bool, rng: random.Random
) -> None:
    """A closing bracket is doubled, swapped or dropped: all records are read, or the text is refused or warned of."""
    text = json.dumps({"items": records} if wrapped else records)
    at = rng.choice([i for i, char in enumerate(text[:-1]) if char in "}]"])
    text = text[:at] + rng.choice(["", text[at] * 2, "]" if text[at] == "}" else "}", "}]", "]}"]) + text[at + 1 :]
    try:
        loaded = load(text)
    except JsonEnforcementError:
        return
    if loaded.warnings:
        return
    kept = json.dumps(loaded.value)
    for record in records:
        assert f'"id": {record["id"]}' in kept, text
