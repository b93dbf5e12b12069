"""The embedded model gives the probabilities of its tokens, whole and streamed."""

from __future__ import annotations

import pytest

from slipform.ir import Message, ModelRequest, Sampling
from slipform.ir.logprobs import tokens_of
from slipform.ir.request import Guard
from slipform.providers.embedded.answer import fold_chunks
from slipform.providers.embedded.call import prepare
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


def test_nobody_who_does_not_ask_gets_them() -> None:
    assert "logprobs" not in prepare(ModelRequest("m", (Message.user("hi"),)), Guard(), None).body
