"""A prompt that the server cut without an error: a warning, or an error where values are to be found in it."""

from __future__ import annotations

import pytest

from slipform import Client
from slipform.enforce.prompt_cut import prompt_cut
from slipform.errors import PromptCutError
from slipform.ir import Media, Message, ModelRequest, ModelResponse, Text, Usage
from slipform.ir.evidence import Evidence
from slipform.ir.messages import PlainTurn, PlainTurns
from slipform.providers.router import Router
from slipform.testing import FakeModel
from tests.conftest import PERSON

ADA = '{"name": "Ada", "age": 36}'
LONG = "Ada Lovelace was thirty-six years old, and lived in London. " * 500
NOT_CUT = {
    "English at four bytes a token": (LONG, len(LONG) // 4),
    "long words at nine bytes a token": ("internationalisation " * 2_000, 42_000 // 9),
    "Chinese at three bytes a token": ("我们在北京的会议上讨论了这个问题。" * 500, 17 * 500),
    "a ruler of one character": ("=" * 60_000, 1_000),
    "blank lines": ("a\n" + "\n" * 50_000, 900),
    "a short prompt": ("Who is Ada? " * 300, 10),
    "no count": (LONG, 0),
}


def test_texts_that_tokenizers_pack_tightly_are_not_taken_for_cut() -> None:
    wrong = [
        name
        for name, (text, tokens) in NOT_CUT.items()
        if prompt_cut(ModelRequest("m", (Message.user(text),)), Usage(input=tokens)) is not None
    ]
    assert wrong == []


def test_a_picture_switches_the_check_off() -> None:
    parts = (Text(LONG), Media("image", "image/png", b"x"))
    assert prompt_cut(ModelRequest("m", (Message("user", parts),)), Usage(input=10)) is None


@pytest.mark.parametrize("tokens", [100, 2_048, 2_499, 2_500, 8_000])
def test_a_conversation_of_words_is_measured_as_its_messages_are(tokens: int) -> None:
    turns = PlainTurns([PlainTurn("system", "Be brief."), PlainTurn("user", LONG)])
    usage = Usage(input=tokens)
    warning = prompt_cut(ModelRequest("m", turns), usage)
    assert warning == prompt_cut(ModelRequest("m", tuple(turns)), usage)
    assert (warning is not None) == (tokens < len(LONG) // 12)


def _client(tokens: int) -> Client:
    answer = ModelResponse(text=ADA, usage=Usage(input=tokens, output=10))
    return Client("fake/m", router=Router({"fake": FakeModel([answer])}))


def test_a_cut_prompt_is_a_warning() -> None:
    result = _client(2_048).ask_full(PERSON, LONG)
    assert [warning.code for warning in result.report.warnings] == ["prompt_cut"]
    assert "2,048 tokens" in result.report.warnings[0].message
    assert _client(8_000).ask_full(PERSON, LONG).report.warnings == ()


def test_a_cut_prompt_is_an_error_where_evidence_is_asked_for() -> None:
    with pytest.raises(PromptCutError, match="cut the rest") as caught:
        _client(2_048).ask_full(PERSON, LONG, evidence=Evidence())
    assert "num_ctx" in (caught.value.hint or "")
