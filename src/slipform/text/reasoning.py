"""Recognise the markers of a model's reasoning, in whole texts and in streams.

Reasoning may contain drafts of the answer, so every reader of answers skips it, and all use this table: what `loads`
skips, the stream skips too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

_TAGS: Final = (
    "think", "thinking", "thought", "thoughts", "reasoning", "reason", "reflection", "scratchpad", "analysis",
    "rationale", "inner_monologue", "internal_monologue", "inner_thoughts", "chain_of_thought", "cot", "antthinking",
    "seed:think", "longcat_think",
)  # fmt: skip
_TOKENS: Final = {
    "<|channel|>analysis<|message|>": "<|end|>",
    "<|channel|>commentary<|message|>": "<|end|>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
}
"""Special tokens of some model families, which some servers pass through, with the token that closes each."""
_MAX_TAG: Final = 200
"""Characters after `<` within which a reasoning tag must end."""

_MAX_BLANKS: Final = 8
_BLANKS: Final = rf"\s{{0,{_MAX_BLANKS}}}"
"""The most blanks before the end of a closing tag; few, because a stream must hold back as many."""
_ANY_TAG: Final = "|".join(_TAGS)
_OPENING: Final = re.compile(
    rf"<(?P<tag>{_ANY_TAG})(?:\s[^<>]{{0,{_MAX_TAG}}})?>|" + "|".join(map(re.escape, _TOKENS)), re.IGNORECASE
)
# A harmony message of any channel ends in `<|end|>`: alone it does not imply that reasoning came before.
_CLOSING: Final = re.compile(
    rf"</(?:{_ANY_TAG}){_BLANKS}>|" + "|".join(re.escape(each) for each in _TOKENS.values() if each != "<|end|>"),
    re.IGNORECASE,
)
_MARKER: Final = re.compile(f"{_OPENING.pattern}|{_CLOSING.pattern}", re.IGNORECASE)
_FRAME: Final = re.compile(r"(?:<\|(?:start|channel)\|>[ \w]{0,40}|<\|[\w ]{1,40}\|>|</?s>|<eos>|<end_of_turn>|\s)+")
"""Special tokens around a message, and the role or channel in some of them."""
QUOTE_PAIRS: Final = {
    '"': '"', "'": "'", "`": "`", "“": "”", "„": "“", "‘": "’", "«": "»", "»": "«", "＂": "＂", "「": "」",
}  # fmt: skip
"""Quotation marks of prose, and what closes each: a bracket alone between them is quoted, and opens nothing."""
STARTS: Final = frozenset({"<", "◁", "["})
"""The characters that a marker can begin with."""


@lru_cache(maxsize=128)
def _closing(opening: str, *, is_tag: bool) -> tuple[re.Pattern[str], int]:
    """Return the closing marker of a block, by its tag or token, and its maximum length."""
    if is_tag:
        return re.compile(rf"</{re.escape(opening)}{_BLANKS}>", re.IGNORECASE), len(opening) + 3 + _MAX_BLANKS
    token = _TOKENS[_canonical(opening)]
    return re.compile(re.escape(token), re.IGNORECASE), len(token)


class Block:
    """An open reasoning block: where its content begins, and the marker that closes it."""

    __slots__ = ("closing", "longest_closing", "start")

    def __init__(self, opening: re.Match[str]) -> None:
        tag = opening["tag"]
        self.start = opening.end()
        self.closing, self.longest_closing = _closing(tag or opening[0], is_tag=bool(tag))

    def end(self, text: str, at: int) -> int:
        """Return the index after the block's closing marker; -1 while it is open."""
        match = self.closing.search(text, at)
        return -1 if match is None else match.end()


def block_at(text: str, at: int) -> Block | None:
    """Return the reasoning block whose opening marker is at `at`, or None.

    >>> text = "<think>{1}</think>[2]"
    >>> block_at(text, 0).end(text, 0), block_at(text, 7)
    (18, None)
    """
    if text[at] not in STARTS:
        return None
    match = _OPENING.match(text, at)
    return None if match is None else Block(match)


def closing_at(text: str, at: int) -> int:
    """Return the index after the closing marker at `at`, or -1; without an opening marker, it ends reasoning too."""
    match = _CLOSING.match(text, at)
    return -1 if match is None else match.end()


def may_open_at(text: str, at: int) -> bool:
    """Return whether the rest of the text could be the beginning of an opening marker at `at`.

    >>> may_open_at("see <thi", 4), may_open_at("see <b>", 4)
    (True, False)
    """
    rest = text[at : at + _MAX_TAG].lower()
    if any(token.lower().startswith(rest) for token in _TOKENS):
        return True
    if rest[:1] != "<" or len(rest) == _MAX_TAG or ">" in rest or "<" in rest[1:]:
        return False
    name = rest[1:].split(maxsplit=1)[0] if rest[1:2].strip() else rest[1:]
    return any(tag.startswith(name) for tag in _TAGS)


def answer_span(text: str) -> tuple[int, int]:
    """Return the part of a text that is neither reasoning nor a special token: from its start to its end.

    The content of an open reasoning block is not part of it.

    >>> text = "<think>maybe 41</think> 42<|im_end|>"
    >>> text[slice(*answer_span(text))]
    '42'
    """
    start = 0
    at = 0
    end = len(text)
    # Every marker has one of these; in a text of brackets, the search itself would take longer than all the rest.
    may_hold_marker = "<" in text or "◁" in text or "nk]" in text.lower()
    while may_hold_marker and (match := _MARKER.search(text, at)) is not None:
        block = block_at(text, match.start())
        at = match.end() if block is None else block.end(text, block.start)
        if at < 0:
            end = match.start()
            break
        start = at
    if (frame := _FRAME.match(text, start, end)) is not None:
        start = frame.end()
    tail = _FRAME.finditer(text, max(start, end - _MAX_TAG), end)
    closing = next((match.start() for match in tail if match.end() == end), end)
    return start, max(start, closing)


def without_template(text: str) -> str:
    r"""Return a text with the markers of its chat template blanked out; all positions stay the same.

    Markers that end a turn are cut off at the end of the text, and with them the turns that a model invents after its
    own. Reasoning before the final channel becomes blanks where only the names of the channels are left of the markers.

    >>> without_template('{"a": 36<|im_end|>'), without_template("analysisMaybe 1?assistantfinal2").strip()
    ('{"a": 36', '2')
    """
    may_end_turn = "<" in text and any(each in text for each in ("|>", "</s>", "<end_of_turn>"))
    # A template that is repeated as a whole begins with such a marker: nothing before it is the model's own turn.
    if may_end_turn and (turn := _NEXT_TURN.search(text)) is not None and text[: turn.start()].strip():
        text = text[: turn.start()]
    may_end_so = text[-_MAX_TAG:].rstrip().endswith((">", "]"))
    if may_end_so and (ending := _ENDING.search(text, max(0, len(text) - _MAX_TAG))) is not None:
        text = text[: ending.start()]
    final = text.rfind(_FINAL_CHANNEL)
    if final >= 0 and (_BEFORE_ANSWER.match(text, final) or is_open_channel(text[:final])):
        final += len(_FINAL_CHANNEL)
        text = " " * final + text[final:]
    return text


def is_open_channel(text: str) -> bool:
    """Return whether a text is reasoning of which only the channel's name is left, and no final channel follows.

    >>> is_open_channel("analysisWe need a city."), is_open_channel("analysis: none")
    (True, False)
    """
    return _STRIPPED_CHANNEL.match(text) is not None and _FINAL_CHANNEL not in text


_END_MARKER: Final = (
    r"<\|[\w ]{1,40}\|>|<｜[^｜\n]{1,40}｜>|</?s>|\[/INST\]"
    r"|<(?:eos|eot|pad|unk|eos_token|endoftext|im_end|end_of_turn|end_of_text|end_of_utterance)>"
)
"""The ends of a turn, or a text, in chat templates."""
_ENDING: Final = re.compile(rf"\s*+(?:(?:{_END_MARKER})\s*+)++\Z", re.IGNORECASE)
_NEXT_TURN: Final = re.compile(
    rf"(?:{_END_MARKER})\s*+"
    r"(?:(?:<\|im_start\|>|<\|start_header_id\|>|<start_of_turn>|<\|start\|>)\s*+(?:user|human|system)\b|<\|user\|>|\[INST\])"
)
"""The end of a turn, and the beginning of the user's next one, which the model invents."""
_FINAL_CHANNEL: Final = "assistantfinal"
_STRIPPED_CHANNEL: Final = re.compile(r"\s*+analysis(?=[A-Z])")
_BEFORE_ANSWER: Final = re.compile(r"assistantfinal\s*+(?:json\s*+)?[{\[\"`]")


def has_marker(text: str, start: int, stop: int) -> bool:
    """Return whether a part of a text contains any marker."""
    return _MARKER.search(text, start, stop) is not None


def _canonical(token: str) -> str:
    return next(each for each in _TOKENS if each.lower() == token.lower())


_ARGUMENTS: Final = ("arguments", "parameters", "input", "args")
CALL_KEYS: Final = frozenset({*_ARGUMENTS, "name", "type", "function", "tool_calls", "id"})
"""The keys of a tool call that was written as text."""
_MAX_WRAPPED: Final = 8


def call_arguments(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a tool call that was written as text, each with its key.

    A call is an object with its name and its arguments, alone or wrapped as vendors do: in `function`, in
    `tool_calls`, or as the only item of a list.

    >>> list(call_arguments([{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]))
    [('arguments', {'a': 1})]
    """
    for _ in range(_MAX_WRAPPED):
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if not isinstance(value, dict):
            return
        if isinstance(function := value.get("function"), dict) and function:
            value = function
            continue
        if isinstance(calls := value.get("tool_calls"), list) and len(value) < 4:
            value = calls
            continue
        if "name" in value or "function" in value or "type" in value:
            for name in _ARGUMENTS:
                if isinstance(value.get(name), dict | list | str):
                    yield name, value[name]
        return
