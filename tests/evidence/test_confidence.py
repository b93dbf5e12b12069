"""How sure a model was of each value: mapped exactly from tokens to leaves, or not at all."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipform.addons.evidence.confidence import Confidence, Written, answer_confidence, leaf_confidence, leaf_spans
from slipform.ir.logprobs import Token

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def cut(text: str, seed: int, most: int = 4) -> list[Token]:
    """A text as tokens of one to `most` bytes, which may split characters, each with a logprob of its own."""
    chosen, data, tokens = random.Random(seed), text.encode("utf-8", "surrogatepass"), []
    while data:
        size = chosen.randint(1, most)
        tokens.append(Token(data[:size], -chosen.randint(1, 40) / 10))
        data = data[size:]
    return tokens


def as_logprobs(tokens: list[Token]) -> dict[str, Any]:
    return {
        "content": [
            {"token": token.data.decode("utf-8", "replace"), "bytes": list(token.data), "logprob": token.logprob}
            for token in tokens
        ]
    }


def expected(tokens: list[Token], text: str, part: str) -> float:
    """The joint probability of the tokens that hold any of a part of the text."""
    start = len(text[: text.index(part)].encode())
    end = start + len(part.encode())
    total, at = 0.0, 0
    for token in tokens:
        if at < end and at + len(token.data) > start:
            total += token.logprob
        at += len(token.data)
    return math.exp(total)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('{"name": "Ada", "age": 36}', {"/name": "Ada", "/age": "36"}),
        ('```json\n{"name": "Ádá", "age": 36}\n```\nDone.', {"/name": "Ádá", "/age": "36"}),
        ("Sure: {'name': 'Ada', 'age': '36',}", {"/name": "Ada", "/age": "36"}),
        ('{name: "Ada", age: 36', {"/name": "Ada", "/age": "36"}),
        ('{"Name": "Ada", "age": "36", "extra": [1, {"x": 2}]}', {"/name": "Ada", "/age": "36"}),
        ('{"name": "Ada", "age": 36, "tags": ["x", "y"]}', {"/name": "Ada", "/tags/1": "y"}),
    ],
)
def test_a_leaf_has_the_tokens_it_was_written_with(text: str, parts: dict[str, str], seed: int) -> None:
    from slipform import loads

    tokens = cut(text, seed)
    value = loads(text, PERSON)
    found = answer_confidence(value, text, as_logprobs(tokens), PERSON)
    for pointer, part in parts.items():
        assert found[pointer].score == pytest.approx(expected(tokens, text, part)), pointer


def test_no_score_without_tokens_and_none_where_they_do_not_join() -> None:
    text, value = '\n{"name": "Ada", "age": 36}', {"name": "Ada", "age": 36}
    assert answer_confidence(value, text, None)["/age"] == Confidence(
        None, reason="the model's vendor gave no token probabilities"
    )
    stripped = as_logprobs(cut(text.strip(), 1))
    assert all(score.score is None and score.reason for score in answer_confidence(value, text, stripped).values())


@pytest.mark.parametrize(
    "logprobs",
    [
        {},
        {"content": []},
        {"content": "x"},
        {"content": [1]},
        {"content": [{"token": "42"}]},
        {"content": [{"token": "42", "logprob": math.nan}]},
        {"content": [{"token": "42", "logprob": 5.0}]},
        {"content": [{"token": None, "logprob": -1, "bytes": None}]},
        {"content": [{"token": "42", "logprob": -1, "bytes": [999]}]},
    ],
)
def test_broken_token_probabilities_give_no_score(logprobs: Any) -> None:
    (score,) = answer_confidence(42, "42", logprobs).values()
    assert score.score is None
    assert score.reason


def test_what_was_put_in_or_rebuilt_has_no_score_and_what_was_moved_keeps_its_own() -> None:
    text = '{"a": 1, "b": [1, 2, 3], "c": {"d": 4}}'
    operations: list[dict[str, Any]] = [
        {"op": "add", "path": "/e", "value": {"f": 1}},
        {"op": "move", "from": "/c/d", "path": "/c/g"},
        {"op": "remove", "path": "/b/0"},
        {"op": "replace", "path": "/a", "value": [1, 2]},
    ]
    tokens = [Token(bytes([byte]), -0.25) for byte in text.encode()]
    found = leaf_confidence(tokens, Written(text, 0, len(text), (), operations))
    assert found["/e/f"].reason == "slipform put it in"
    assert found["/c/g"].score == pytest.approx(math.exp(-0.25))
    assert {pointer for pointer in found if pointer.startswith("/b")} == {"/b/0", "/b/1"}
    assert found["/a/0"].reason == "slipform rebuilt it"


def test_a_token_shared_with_syntax_is_told() -> None:
    tokens = [Token(b'{"a": 4', -0.5), Token(b"2}", -0.5)]
    (score,) = leaf_confidence(tokens, Written('{"a": 42}', 0, 9)).values()
    assert (score.shared, score.tokens) == (True, 2)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(_JSON, st.integers(0, 99), st.booleans())
def test_every_leaf_of_valid_json_has_a_score_whose_tokens_hold_its_text(
    value: Any, seed: int, ascii_only: bool
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    tokens = cut(text, seed)
    found = leaf_confidence(tokens, Written(text, 0, len(text)))
    spans = {path: text[start:end] for path, start, end in leaf_spans(text)}
    assert len(found) == len(spans)
    for (path, part), score in zip(spans.items(), found.values(), strict=True):
        assert (score.score is None) == (part == ""), path
