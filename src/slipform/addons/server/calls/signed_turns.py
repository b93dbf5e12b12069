"""Store the signed parts of turns with tool calls, and restore them when the caller sends the turns again.

Thinking models require their signed thinking back, with the results of the tools that they called. Clients of the
vendor's own API send it themselves; other APIs have no fields for it. So it is stored here by the ids of the calls,
separately for each caller's key. An expired turn is sent without it: the codecs then omit thinking and warn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from slipform.addons.server.calls.replaced_ids import ReplacedIds
from slipform.addons.server.calls.signature_stores import SignatureStore
from slipform.codecs.openai_responses.serve_encode import UniqueCallIds
from slipform.ir import Message, ModelRequest, ModelResponse, Opaque, Part, Reasoning, Text, ToolCall

_LONGEST_ID = 200


class KeptReasoning(msgspec.Struct, tag="reasoning", tag_field="kind", forbid_unknown_fields=True):
    """Reasoning with the vendor's signature."""

    text: str
    opaque: dict[str, dict[str, Any]]


class KeptOpaque(msgspec.Struct, tag="opaque", tag_field="kind", forbid_unknown_fields=True):
    """A part that only its vendor can interpret."""

    vendor: str
    data: dict[str, Any]


class KeptText(msgspec.Struct, tag="text", tag_field="kind", forbid_unknown_fields=True):
    """The position of the text, which the caller has, and the vendor's data about it."""

    extra: dict[str, dict[str, Any]]


class KeptCall(msgspec.Struct, tag="call", tag_field="kind", forbid_unknown_fields=True):
    """The position of a call, which the caller has, and the vendor's data about it."""

    id: str
    extra: dict[str, dict[str, Any]]


KeptPart: TypeAlias = KeptReasoning | KeptOpaque | KeptText | KeptCall


class KeptTurn(msgspec.Struct, forbid_unknown_fields=True):
    """A turn, stored by its first call; entries of its other calls only name the first."""

    parts: list[KeptPart] = []
    first: str = ""


_decode = msgspec.json.Decoder(KeptTurn).decode


class SignedTurns:
    """The turns of all callers, in a store."""

    def __init__(self, store: SignatureStore) -> None:
        self._store = store

    def replaced_ids(self, caller: str) -> ReplacedIds:
        """Return the caller's ids that differ from the vendor's; they are in the same store."""
        return ReplacedIds(self._store, caller)

    async def keep(self, caller: str, answer: ModelResponse) -> None:
        """Store the signed parts of an answer with calls, which the caller's next request may lack."""
        turn = _turn_of(answer.parts) if answer.tool_calls else None
        if turn is None:
            return
        first, *others = (call.id for call in answer.tool_calls)
        entries = {first: msgspec.json.encode(turn)}
        entries.update({each: msgspec.json.encode(KeptTurn(first=first)) for each in others})
        await self._store.put(caller, {key: data for key, data in entries.items() if len(key) <= _LONGEST_ID})

    async def restored(self, caller: str, request: ModelRequest) -> ModelRequest:
        """Return the request with the turns as their vendor wrote them, where they are stored."""
        turns_with_calls = (message for message in request.messages if message.role == "assistant")
        call_ids = [
            call.id for message in turns_with_calls for call in message.tool_calls if len(call.id) <= _LONGEST_ID
        ]
        if not call_ids:
            return request
        turns = _read(await self._store.get(caller, call_ids))
        missing = [turn.first for turn in turns.values() if turn.first and turn.first not in turns]
        if missing:
            turns |= _read(await self._store.get(caller, missing))
        if not turns:
            return request
        used: set[str] = set()
        messages = tuple([_restore_turn(message, turns, used, request.extra_for) for message in request.messages])
        return request.replace(messages=messages)


class CallerTurns(msgspec.Struct, frozen=True):
    """The turns of one caller."""

    turns: SignedTurns
    caller: str
    unique_ids: UniqueCallIds | None = None
    """Set where the caller may see other ids of calls than the vendor's."""

    async def keep(self, answer: ModelResponse) -> None:
        """Store the signed parts of an answer: see `SignedTurns.keep`."""
        if answer.tool_calls:
            await self.turns.keep(self.caller, self._as_shown(answer))

    def _as_shown(self, answer: ModelResponse) -> ModelResponse:
        """Return the answer with the ids of calls that the caller sees."""
        unique_ids = self.unique_ids
        if unique_ids is None or unique_ids.taken.isdisjoint([call.id for call in answer.tool_calls]):
            return answer

        def shown(call: ToolCall) -> ToolCall:
            return ToolCall(unique_ids.unique_id(call.id), call.name, call.arguments, call.extra)

        calls = tuple([shown(call) for call in answer.tool_calls])
        parts = tuple([shown(part) if isinstance(part, ToolCall) else part for part in answer.parts])
        return answer.replace(tool_calls=calls, parts=parts)

    @property
    def replaced_ids(self) -> ReplacedIds:
        """The ids that the caller saw in streams: see `SignedTurns.replaced_ids`."""
        return self.turns.replaced_ids(self.caller)

    async def restored(self, request: ModelRequest) -> ModelRequest:
        """Return the request with its signed parts: see `SignedTurns.restored`."""
        return await self.turns.restored(self.caller, request)


def _read(entries: Mapping[str, bytes]) -> dict[str, KeptTurn]:
    """Decode stored turns; entries that other programs wrote to Redis are ignored."""
    turns: dict[str, KeptTurn] = {}
    for key, data in entries.items():
        try:
            turns[key] = _decode(data)
        except msgspec.DecodeError:
            continue
    return turns


def _turn_of(parts: Sequence[Part]) -> KeptTurn | None:
    """Return the parts of a turn to store; None where the caller has all of it."""
    kept_parts: list[KeptPart] = []
    for part in parts:
        if isinstance(part, Reasoning) and part.opaque:
            kept_parts.append(KeptReasoning(part.text, _plain(part.opaque)))
        elif isinstance(part, Opaque):
            kept_parts.append(KeptOpaque(part.vendor, dict(part.data)))
        elif isinstance(part, Text):
            kept_parts.append(KeptText(_plain(part.extra)))
        elif isinstance(part, ToolCall):
            kept_parts.append(KeptCall(part.id, _plain(part.extra)))
    signed = any(isinstance(part, (KeptReasoning, KeptOpaque)) or part.extra for part in kept_parts)
    return KeptTurn(kept_parts) if signed else None


def turn_text(parts: Sequence[Part]) -> bytes:
    """Encode an answer's parts without text and calls as JSON; empty without others."""
    turn = _turn_of(parts)
    return b"" if turn is None else msgspec.json.encode(turn)


def parts_of(data: bytes, text: str, calls: Sequence[ToolCall]) -> tuple[Part, ...]:
    """Return the parts of an answer from its text, its calls and `turn_text`; none where that cannot be decoded."""
    turn = _read({"": data}).get("")
    message = Message("assistant", (*((Text(text),) if text else ()), *calls))
    if turn is None:
        return ()
    return _merge_turn(message, turn.parts, with_turn=True).parts


def _plain(extra: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {codec: dict(fields) for codec, fields in extra.items()}


def _restore_turn(message: Message, turns: Mapping[str, KeptTurn], used: set[str], api: str | None) -> Message:
    """Return a turn with the signed parts that were stored for it, where the client has left them out."""
    calls = {call.id: call for call in message.tool_calls}
    turn = next((turns[each] for each in calls if each in turns), None)
    if message.role != "assistant" or turn is None:
        return message
    first = turn.first or next(each for each in calls if each in turns)
    kept_parts = turns.get(turn.first, turn).parts
    if _is_carried_by(kept_parts, api):
        return message
    merged = _merge_turn(message, kept_parts, with_turn=first not in used)
    used.add(first)
    return merged


def _merge_turn(message: Message, kept_parts: Sequence[KeptPart], *, with_turn: bool) -> Message:
    """Merge the stored parts into a turn; without `with_turn` only those of calls, as another message has the rest."""
    calls = {call.id: call for call in message.tool_calls}
    parts: list[Part] = []
    texts = [part for part in message.parts if not isinstance(part, (ToolCall, Reasoning))]
    thoughts = [part for part in message.parts if isinstance(part, Reasoning)]
    for part in kept_parts:
        if isinstance(part, KeptCall):
            if part.id in calls:
                call = calls.pop(part.id)
                parts.append(ToolCall(call.id, call.name, call.arguments, {**part.extra, **call.extra}))
        elif not with_turn:
            continue
        elif isinstance(part, KeptReasoning):
            parts.append(Reasoning(part.text, part.opaque))
            thoughts.clear()  # the same without signatures, possibly generated for an API that has none
        elif isinstance(part, KeptOpaque):
            parts.append(Opaque(part.vendor, part.data))
        else:
            parts += _with_extra(texts, part.extra)
            texts = []
    at = next((at for at, part in enumerate(parts) if isinstance(part, ToolCall)), len(parts))
    return message.replace(parts=(*thoughts, *parts[:at], *texts, *parts[at:], *calls.values()))


def _is_carried_by(kept_parts: Sequence[KeptPart], api: str | None) -> bool:
    """Return whether the caller's API has fields for these parts: then a client that omits them does so on purpose.

    Chat Completions has many vendors, whose additional fields most clients do not know.
    """
    codecs = {codec for part in kept_parts if isinstance(part, KeptReasoning) for codec in part.opaque}
    codecs |= {codec for part in kept_parts if isinstance(part, (KeptText, KeptCall)) for codec in part.extra}
    return api != "openai-chat" and api in codecs


def _with_extra(texts: Sequence[Part], extra: Mapping[str, Any]) -> list[Part]:
    """Return the caller's texts, with the vendor's data about its own text where there is exactly one of each."""
    if not extra or len(texts) != 1 or not isinstance(texts[0], Text):
        return list(texts)
    return [Text(texts[0].text, {**extra, **texts[0].extra})]
