"""Link the recorded calls of a conversation: a call follows another if its messages begin with that call's.

Only digests are compared, and the name of the caller's key is part of each: calls of different keys are never linked.
A digest covers what a client repeats (text, names and arguments of tool calls, results), not what may change between
two calls: ids, reasoning, the system prompt, cache markers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Any, Final

import msgspec
import orjson

from slipform.addons.server.console.rows import Entry, named, row_of
from slipform.addons.server.observability.call_record import CallRecord, CallTrace
from slipform.codecs import APIS, Capabilities, EncodedRequest, find_api, make_codec
from slipform.codecs.answer import MALFORMED
from slipform.errors import SlipformError
from slipform.ir import Media, Message, ModelResponse, Part, Text, ToolCall, ToolResult
from slipform.ir.reducer import Reducer, Snapshot

_MOST_CALLS: Final = 2_000
_MOST_BEFORE: Final = 4
"""The most earlier answers of a request that are looked up: calls in between may not have been recorded."""
_APIS: Final = frozenset({*APIS, "ollama"})
_DIGEST_BYTES: Final = 12
_UNKNOWN: Final = b"?"
"""Replaces an answer that was not recorded completely."""
_SUMMARY: Final = ("id", "model", "stage", "outcome", "status", "ms")

RecordedCall = tuple[Entry, CallTrace, CallRecord]
"""A call's entry, text and record."""


class ConversationCall(msgspec.Struct, frozen=True):
    """A call, and the digests by which it is linked."""

    summary: Mapping[str, Any]
    """The fields that the list of a conversation shows."""
    follows: tuple[str, ...]
    """The digests of the calls that it may continue, the latest first."""
    ends: tuple[str, ...]
    """The digests by which later calls may continue it."""


class Conversations:
    """The last recorded calls of one worker; their digests are computed when a page needs them."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, ConversationCall | None] = OrderedDict()
        self._unread: dict[str, RecordedCall] = {}

    def add(self, call: RecordedCall) -> None:
        """Add a call, to be read as long as its text is stored."""
        self._unread[call[0].id] = call
        if len(self._unread) > _MOST_CALLS:
            del self._unread[next(iter(self._unread))]

    def discard_text(self, identity: str) -> None:
        """Drop an unread call after its text was deleted."""
        self._unread.pop(identity, None)

    def unread(self) -> dict[str, RecordedCall]:
        """Return the calls that `read_calls` has yet to read, by their ids."""
        return dict(self._unread)

    def keep(self, calls: Mapping[str, ConversationCall | None]) -> None:
        """Store the calls that were read, except those that were discarded in the meantime."""
        for identity, call in calls.items():
            if self._unread.pop(identity, None) is not None:
                self._calls[identity] = call
        while len(self._calls) > _MOST_CALLS:
            self._calls.popitem(last=False)

    def calls(self) -> list[ConversationCall]:
        """Return the calls that were read and belong to an API with conversations."""
        return [call for call in self._calls.values() if call is not None]

    def clear(self) -> None:
        """Forget all calls."""
        self._calls.clear()
        self._unread.clear()


def link_calls(calls: Iterable[ConversationCall]) -> list[list[Mapping[str, Any]]]:
    """Return the conversations of more than one call; the calls are in the order in which they began."""
    conversations: list[list[Mapping[str, Any]]] = []
    by_end: dict[str, list[Mapping[str, Any]]] = {}
    for call in sorted(calls, key=lambda each: each.summary["at"]):
        conversation = next((by_end[each] for each in call.follows if each in by_end), None)
        if conversation is None:
            conversation = []
            conversations.append(conversation)
        conversation.append(call.summary)
        by_end.update(dict.fromkeys(call.ends, conversation))
    return [each for each in conversations if len(each) > 1]


def read_calls(calls: Mapping[str, RecordedCall]) -> dict[str, ConversationCall | None]:
    """Compute the digests of each of these calls, by their ids."""
    return {identity: read_call(call) for identity, call in calls.items()}


def read_call(call: RecordedCall) -> ConversationCall | None:
    """Compute the digests of a call; None for a call without messages, or one that cannot be read."""
    entry, trace, record = call
    if record.api not in _APIS:
        return None
    try:
        body = orjson.loads(trace.request)
        answer = _answer_of(record, trace.response)
        before, after = _digests(record, _messages_of(record.api, body), answer)
    except (SlipformError, *MALFORMED):
        return None
    follows, ends = _stored_names(record, body, answer)
    fields = named(row_of(entry))
    summary = {name: fields[name] for name in _SUMMARY}
    summary["at"] = entry.began  # not rounded: calls are sorted by it
    return ConversationCall(summary, (*follows, *before), (*ends, *after))


def _messages_of(name: str, body: Any) -> Sequence[Message]:
    api = find_api(name)
    if api.turns is None:
        return api.decode_request(body).request.messages
    return api.turns({field: body[field] for field in api.turn_fields if field in body})


def _answer_of(record: CallRecord, body: bytes) -> ModelResponse | None:
    """Return the answer that the client received; None for an error or an incomplete recording."""
    if record.outcome != "ok" or not body:
        return None
    codec = make_codec(record.api, Capabilities())
    request = EncodedRequest("", b"")
    try:
        if not record.stream:
            return codec.decode_response(body, request)
        decoder = codec.decode_stream(request)
        reducer = Reducer()
        reducer.start(Snapshot())
        for chunk in (*decoder.feed(body), *decoder.finish()):
            reducer.push(chunk)
        return reducer.finish(check=False)
    except SlipformError:
        return None


def _stored_names(record: CallRecord, body: Any, answer: ModelResponse | None) -> tuple[list[str], list[str]]:
    """Return digests of the ids that a stored conversation gives the earlier calls, and this one."""
    if record.api != "openai-responses":
        return [], []
    before = body.get("previous_response_id")
    conversation = body.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    follows = [_id_digest(record, each) for each in (before, conversation) if each]
    answer_id = None if answer is None else answer.id
    return follows, [_id_digest(record, each) for each in (answer_id, conversation) if each]


def _id_digest(record: CallRecord, identity: str) -> str:
    return blake2b(orjson.dumps([record.caller, identity]), digest_size=_DIGEST_BYTES).hexdigest()


def _digests(
    record: CallRecord, messages: Sequence[Message], answer: ModelResponse | None
) -> tuple[list[str], list[str]]:
    """Return digests of the messages up to each of the last answers, the latest first, and up to this answer."""
    digest = blake2b(record.caller.encode(), digest_size=_DIGEST_BYTES)
    before: list[str] = []
    prefix_answer: Sequence[Part] = ()
    """The answer at the end of a request, which the model continues."""
    for is_answer, parts in _turns(messages):
        if is_answer:
            prefix_answer = parts
            before = [_with(digest, _content(prefix_answer)), _with(digest, _UNKNOWN), *before[: 2 * _MOST_BEFORE - 2]]
        else:
            digest.update(_content(prefix_answer))
            digest.update(_content(parts))
            prefix_answer = ()
    if record.outcome not in ("ok", "client_gone"):
        return before, []
    end = _UNKNOWN if answer is None else _content((*prefix_answer, *answer.message.parts))
    return before, [_with(digest, end)]


def _with(digest: blake2b, content: bytes) -> str:
    longer = digest.copy()
    longer.update(content)
    return longer.hexdigest()


def _turns(messages: Sequence[Message]) -> Iterator[tuple[bool, list[Part]]]:
    """Yield the parts of each turn, and whether it is the model's."""
    conversation = (each for each in messages if each.role != "system")
    for is_answer, turn in groupby(conversation, key=lambda each: each.role == "assistant"):
        yield is_answer, [part for each in turn for part in each.parts]


def _content(parts: Sequence[Part]) -> bytes:
    """Return what a client repeats of a turn, in one spelling."""
    text = "".join(part.text for part in parts if isinstance(part, Text)).strip()
    calls = [(part.name, _arguments(part.arguments)) for part in parts if isinstance(part, ToolCall)]
    results = [part.text.strip() for part in parts if isinstance(part, ToolResult)]
    media = [part.kind for part in parts if isinstance(part, Media)]
    return orjson.dumps([text, calls, results, media], option=orjson.OPT_SORT_KEYS)


def _arguments(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text.strip()
