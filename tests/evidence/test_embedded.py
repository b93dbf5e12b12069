"""The embedded model gives the probabilities of its tokens, whole and streamed."""

from __future__ import annotations

import math

import pytest

from slipform.addons.local.call import prepare
from slipform.addons.local.llama import AdmittedTokens
from slipform.ir import Message, ModelRequest, Sampling
from slipform.ir.logprobs import tokens_of
from slipform.ir.reducer import fold_chunks
from slipform.ir.request import Guard
from slipform.schema import ResponseFormat, Schema
from tests.evidence.test_confidence import as_logprobs, cut


@pytest.mark.parametrize(
    ("kind", "pieces", "text"),
    [("object", ['{"a":', " 36}"], '{"a": 36}'), ("string", ['{"value":', ' "x', 'y"}'], ' "xy"')],
)
def test_its_tokens_join_to_its_text(kind: str, pieces: list[str], text: str) -> None:
    wanted = ResponseFormat.strict(Schema.of({"type": kind}).spec)
    request = ModelRequest("m", (Message.user("hi"),), wanted, sampling=Sampling(temperature=0), logprobs=0)
    call = prepare(request, Guard(), None)
    assert (call.body["logprobs"], call.body["top_logprobs"]) == (True, 1)
    reader = call.answer()
    chunks = [
        reader.feed({"choices": [{"delta": {"content": piece}, "logprobs": as_logprobs(cut(piece, at))}]})
        for at, piece in enumerate(pieces)
    ]
    answer = fold_chunks(chunks, call.warnings)
    tokens = tokens_of(answer.extra["logprobs"])
    assert answer.text == text
    assert tokens is not None
    assert b"".join(token.data for token in tokens) == text.encode()


YES_OR_NO = '%llguidance {}\nstart: "{\\"a\\": " ("true" | "false") "}"'


@pytest.mark.parametrize(
    ("token", "listed", "probability"),
    [
        (b"true", [(b"7", -0.1), (b"true", -4.0), (b"false", -4.0)], 0.5),
        (b"true", [(b"7", -0.1), (b"true", -4.0), (b"f", -5.0), (b"false", -40.0)], 0.731),
        (b"tr", [(b"tr", -4.0), (b"true", -4.0), (b"t", -4.0)], 0.333),
        (b"true", [(b"7", -0.1), (b"8", -3.0)], 0.5),  # what is admitted besides may be as likely as the token itself
        (b"true", [(b"7", -0.1), (b"true", -1.0), (b"8", -9.0)], 0.9997),  # or as likely as the last that is listed
    ],
)
def test_a_token_is_scored_among_those_that_the_grammar_admits(
    token: bytes, listed: list[tuple[bytes, float]], probability: float
) -> None:
    answer = AdmittedTokens(YES_OR_NO)
    assert answer.admitted(b'{"a": ', -9.0, [(b"Sure", -0.1)]) == 0.0  # nothing else may stand there
    own = dict(listed).get(token, -4.0)
    assert math.exp(answer.admitted(token, own, listed) or 0) == pytest.approx(probability, abs=0.001)


def test_tokens_that_the_grammar_does_not_take_are_not_scored() -> None:
    answer = AdmittedTokens(YES_OR_NO)
    assert answer.admitted(b"Sure", -0.1, [(b"{", -3.0)]) is None
    assert answer.admitted(b'{"a": ', -0.1, [(b"{", -3.0)]) is None


def test_chunks_have_the_figure_and_no_more_alternatives_than_were_asked_for() -> None:
    answer = AdmittedTokens(YES_OR_NO)
    tokens = [
        ('{"a": ', [("Sure", -0.1)]),
        ("true", [("7", -0.1), ("true", -4.0), ("false", -4.0)]),
        ("}", [("}", 0.0)]),
    ]
    entries = [
        {
            "token": token,
            "bytes": list(token.encode()),
            "logprob": -4.0,
            "top_logprobs": [{"token": t, "bytes": list(t.encode()), "logprob": p} for t, p in others],
        }
        for token, others in tokens
    ]
    noted = answer.note({"choices": [{"logprobs": {"content": entries}}]}, 1)["choices"][0]["logprobs"]
    assert [len(entry["top_logprobs"]) for entry in noted["content"]] == [1, 1, 1]
    assert [round(math.exp(token.logprob), 2) for token in tokens_of(noted) or ()] == [1.0, 0.5, 1.0]
    del noted["content"][0]["admitted_logprob"]  # one that has none: the model's own figures, for all
    assert [token.logprob for token in tokens_of(noted) or ()] == [-4.0, -4.0, -4.0]


def test_nobody_who_does_not_ask_gets_them() -> None:
    assert "logprobs" not in prepare(ModelRequest("m", (Message.user("hi"),)), Guard(), None).body
