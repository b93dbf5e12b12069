"""Replace the text and calls among the parts of an answer, and write parts as the chunks of a stream."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from slipform.ir.messages import Part, Reasoning, Text, ToolCall, ToolResult
from slipform.ir.response import CompletionChunk, ToolDelta

MESSAGE = "message"
"""The field of a text that has the fields of its message, as a turn may have several messages."""
ITEM_ID = "item_id"
"""The field of a chunk that has the id of the item that begins with it."""


def with_content(parts: Sequence[Part], text: str, calls: Sequence[ToolCall]) -> tuple[Part, ...]:
    """Return the parts with this text and these calls in place of their own; all others stay unchanged.

    A changed text replaces the last one, with the vendor's data about all of them: signatures and citations do not
    depend on its bytes.

    >>> with_content((Reasoning("hm", {"anthropic": {"signature": "s"}}), Text("{'a':1}")), '{"a":1}', ())[1].text
    '{"a":1}'
    """
    if not calls and _is_only_text(parts, text):  # most answers
        return (parts[0],)
    texts = [part for part in parts if isinstance(part, Text)]
    same_text = "".join([part.text for part in texts]) == text
    in_order = sum(isinstance(part, ToolCall) for part in parts) == len(calls)
    waiting = list(calls)
    replaced: list[Part] = []
    for part in parts:
        if isinstance(part, Text):
            if same_text:
                replaced.append(part)
            elif part is texts[-1] and text:
                replaced.append(Text(text, _merged(texts)))
        elif isinstance(part, ToolCall):
            position = 0 if in_order else _position(waiting, part.id)
            if position is not None:
                replaced.append(waiting.pop(position))
        else:
            replaced.append(part)
    if text and not texts:
        replaced.insert(_first_call(replaced), Text(text))
    return (*replaced, *waiting)


def _is_only_text(parts: Sequence[Part], text: str) -> bool:
    return len(parts) == 1 and isinstance(parts[0], Text) and parts[0].text == text


def _first_call(parts: Sequence[Part]) -> int:
    return next((at for at, part in enumerate(parts) if isinstance(part, ToolCall)), len(parts))


def _position(calls: Sequence[ToolCall], identity: str) -> int | None:
    return next((at for at, call in enumerate(calls) if call.id == identity), None)


def _merged(parts: Sequence[Part]) -> Mapping[str, Any]:
    """Return the vendors' data about several texts that become one: lists grow, of other values the last counts."""
    merged: dict[str, Any] = {}
    for part in parts:
        for codec, fields in part.extra.items() if isinstance(part, Text) else ():
            own = merged.setdefault(codec, {})
            for key, value in fields.items():
                joins = isinstance(value, list) and isinstance(own.get(key), list)
                own[key] = [*own[key], *value] if joins else value
    return merged


def _item_fields(part: Text) -> Mapping[str, Any]:
    """Return the id of the vendor's item that contains a text, as in a stream's chunks; empty for most texts."""
    for codec, fields in part.extra.items():
        message = fields.get(MESSAGE) if isinstance(fields, Mapping) else None
        if isinstance(message, Mapping) and message.get("id"):
            return {codec: {ITEM_ID: message["id"]}}
    return {}


def part_chunks(
    parts: Sequence[Part],
    *,
    sent_text: int = 0,
    sent: Collection[int] = (),
    calls: Mapping[str, ToolDelta | None] | None = None,
) -> Iterator[CompletionChunk]:
    """Yield a stream's chunks for these parts, in their order, one part each.

    `sent_text` is how many characters of the text have been sent, `sent` has the `id()` of other parts that have been,
    and `calls` what is to be sent of which call, where that is not all of them.
    """
    index = 0
    for at, part in enumerate(parts):
        if isinstance(part, Text):
            text = part.text[sent_text:]
            all_sent = 0 < len(part.text) <= sent_text
            sent_text = max(0, sent_text - len(part.text))
            if text:
                yield CompletionChunk(text, extra=_item_fields(part))
            if not all_sent and (part.extra or (at + 1 < len(parts) and isinstance(parts[at + 1], Text))):
                yield CompletionChunk(parts=(Text("", part.extra),))
        elif isinstance(part, ToolCall):
            whole = ToolDelta(index, part.id, part.name, part.arguments, part.extra, True)
            delta = whole if calls is None else calls.get(part.id, whole)
            index += 1
            if delta is not None:
                yield CompletionChunk(tool_calls=(delta,))
        elif isinstance(part, Reasoning):
            if id(part) not in sent:
                yield CompletionChunk(reasoning=part.text, parts=(part,))
        elif not isinstance(part, ToolResult) and id(part) not in sent:
            yield CompletionChunk(parts=(part,))
