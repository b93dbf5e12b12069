"""Store the answers to Responses requests, and insert the stored items that later requests refer to.

Vendors of other APIs store nothing, so clients that continue by `previous_response_id`, `conversation` or
`item_reference` would lose their conversation there. Every item is stored under a hash of its content. A response
lists the hashes of all items before it, of its input and of its output, and never refers to another response: two
continuations of one response share no mutable data, and cycles are impossible.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
import orjson

from slipform.addons.server.calls.parsed_body import ParsedBody, write_body
from slipform.addons.server.calls.references import Ownership, find_references
from slipform.addons.server.calls.replaced_ids import is_reference
from slipform.addons.server.calls.resources import NoPreviousResponseError, NoSuchResourceError
from slipform.addons.server.calls.signature_stores import SignatureStore
from slipform.codecs.openai_responses.encode import OWN_ID
from slipform.codecs.openai_responses.serve_encode import UNIQUE_CALL_IDS, UniqueCallIds
from slipform.errors import RequestError, TooLargeError
from slipform.schema.limits import LARGE_BYTES

T = TypeVar("T")

_log = logging.getLogger("slipform.server")
_LONGEST_ID: Final = 256
_MOST_TRIES: Final = 1_000
"""The most attempts to change a conversation that other requests change concurrently."""
_HASH_BYTES: Final = 12
_HASH_AT_END: Final = re.compile(r"_slipform_([0-9a-f]{24})\Z")
_ITEM: Final = "item:"
_ITEM_NAME: Final = "name:"
_RESPONSE: Final = "response:"
_CONVERSATION: Final = "conversation:"
_PREFIXES: Final = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
_EXPIRED: Final = (
    "It was not stored (`store: false`), has expired or was deleted, or belongs to another key. "
    "Send the conversation in `input`."
)
_NO_CONVERSATION: Final = (
    "It was deleted, has expired, belongs to another key, or a provider of kind `openai-responses` stores it. "
    "Create one with POST /v1/conversations, or send the conversation in `input`."
)

StoredItem: TypeAlias = tuple[str, bytes]
"""The hash of an item, and the item as JSON."""


def is_own_id(identity: str) -> bool:
    """Return whether slipform made this id of a response, an item or a conversation.

    >>> is_own_id("msg_slipform_0"), is_own_id("resp_sf1_up_1")
    (True, False)
    """
    return OWN_ID in identity[:32]


def new_id(kind: str) -> str:
    """Return a new id of this kind (`resp`, `conv`)."""
    return f"{kind}{OWN_ID}{os.urandom(_HASH_BYTES).hex()}"


class ResponseEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A stored response: the hashes of its items, and its other fields."""

    stored_at: float
    before: list[str]
    input: list[str]
    output: list[str]
    response: dict[str, Any]


class ConversationEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A stored conversation: the hashes of its items, and its metadata."""

    stored_at: float
    created_at: int
    items: list[str]
    metadata: dict[str, Any] = {}


_decode_response: Final = msgspec.json.Decoder(ResponseEntry).decode
_decode_conversation: Final = msgspec.json.Decoder(ConversationEntry).decode


class ResponseStore(msgspec.Struct, frozen=True):
    """The responses, items and conversations of one caller."""

    store: SignatureStore
    caller: str
    ttl_seconds: float
    max_bytes: int
    """The most bytes of one conversation."""
    clock: Callable[[], float] = time.time

    async def response(self, identity: str) -> ResponseEntry | None:
        """Return a response; None for one that is not stored here, is too old, or belongs to another key."""
        data = await self._read(_RESPONSE + identity)
        try:
            entry = None if data is None else _decode_response(data)
        except msgspec.DecodeError:
            return None
        if entry is not None and self._is_current(entry.stored_at):
            return entry
        return None

    async def conversation(self, identity: str) -> ConversationEntry | None:
        """Return a conversation; None for one that is not stored here, is too old, or belongs to another key."""
        return self._current_conversation(await self._read(_CONVERSATION + identity))

    def _current_conversation(self, data: bytes | None) -> ConversationEntry | None:
        try:
            entry = None if data is None else _decode_conversation(data)
        except msgspec.DecodeError:
            return None
        if entry is not None and self._is_current(entry.stored_at):
            return entry
        return None

    async def change_conversation(
        self,
        identity: str,
        change: Callable[[ConversationEntry], None],
        items: Sequence[StoredItem] = (),
        records: Mapping[str, msgspec.Struct] = MappingProxyType({}),
    ) -> ConversationEntry | None:
        """Change a conversation, and store it with items and records; return it, or None where it is not stored.

        Where another request has changed it in the meantime, `change` is applied again to the new version.
        """
        key = _CONVERSATION + identity
        for _ in range(_MOST_TRIES):
            data = await self._read(key)
            entry = self._current_conversation(data)
            if entry is None or data is None:
                return None
            change(entry)
            entries = self._entries({**records, key: entry}, items)
            if entries is None or await self.store.replace(self.caller, (key, data), entries):
                return entry
        _log.warning("stored responses: conversation changes too often to be stored, tries=%d", _MOST_TRIES)
        return None

    async def items(self, hashes: Sequence[str]) -> dict[str, bytes]:
        """Return the stored items among these, by their hashes."""
        entries = await self.store.get(self.caller, [_ITEM + each for each in hashes]) if hashes else {}
        return {key.removeprefix(_ITEM): data for key, data in entries.items()}

    async def hashes(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the hashes of items by their ids, for the ids that are known."""
        valid_ids = [each for each in dict.fromkeys(ids) if len(each) <= _LONGEST_ID]
        entries = await self.store.get(self.caller, [_ITEM_NAME + each for each in valid_ids]) if valid_ids else {}
        hashes: dict[str, str] = {}
        for identity in valid_ids:
            stored_hash = entries.get(_ITEM_NAME + identity)
            own_hash = _HASH_AT_END.search(identity)
            if stored_hash is not None:
                hashes[identity] = stored_hash.decode("latin-1")
            elif own_hash is not None:
                hashes[identity] = own_hash[1]
        return hashes

    async def put(self, records: Mapping[str, msgspec.Struct], items: Sequence[StoredItem]) -> None:
        """Store responses or conversations by their keys, with their items, unless they are too large to be sent."""
        entries = self._entries(records, items)
        if entries is not None:
            await self.store.put(self.caller, entries)

    def _entries(self, records: Mapping[str, msgspec.Struct], items: Sequence[StoredItem]) -> dict[str, bytes] | None:
        """Return the entries to store for these records and items; None where the items are too large."""
        size = sum(len(data) for _, data in items)
        if size > self.max_bytes:
            _log.warning("stored responses: conversation is too long to be stored, bytes=%d", size)
            return None
        entries = {_ITEM + item_hash: data for item_hash, data in items}
        for item_hash, data in items:
            identity = _item_id(data)
            if identity is not None:
                entries[_ITEM_NAME + identity] = item_hash.encode()
        return entries | {key: msgspec.json.encode(record) for key, record in records.items()}

    async def remove_response(self, identity: str, entry: ResponseEntry) -> None:
        """Delete a response and the ids of its output; the items may belong to other responses, or expire."""
        output = await self.items(entry.output)
        names = [_ITEM_NAME + name for data in output.values() if (name := _item_id(data)) is not None]
        await self.store.remove(self.caller, [_RESPONSE + identity, *names])

    async def remove_conversation(self, identity: str) -> None:
        """Delete a conversation; its items expire, or belong to responses."""
        await self.store.remove(self.caller, [_CONVERSATION + identity])

    async def _read(self, key: str) -> bytes | None:
        if len(key) > _LONGEST_ID:
            return None
        return (await self.store.get(self.caller, [key])).get(key)

    def _is_current(self, stored_at: float) -> bool:
        return stored_at >= self.clock() - self.ttl_seconds


def response_key(identity: str) -> str:
    """Return the store's key of a response."""
    return _RESPONSE + identity


def conversation_key(identity: str) -> str:
    """Return the store's key of a conversation."""
    return _CONVERSATION + identity


def _item_id(data: bytes) -> str | None:
    """Return the id of an item; None where it has none by which it can be looked up."""
    identity = orjson.loads(data).get("id")
    if isinstance(identity, str) and 0 < len(identity) <= _LONGEST_ID:
        return identity
    return None


def stored_item(item: Mapping[str, Any]) -> StoredItem:
    """Return the hash of an item, and the item as JSON."""
    data = write_body(item)
    return blake2b(data, digest_size=_HASH_BYTES).hexdigest(), data


def shown_item(item_hash: str, data: bytes) -> dict[str, Any]:
    """Return a stored item with an id: its own, else one that contains its hash."""
    item: dict[str, Any] = orjson.loads(data)
    kind = item.get("type", "message")
    prefix = _PREFIXES.get(kind, "item") if isinstance(kind, str) else "item"
    return {"id": f"{prefix}{OWN_ID}{item_hash}", "type": kind, **item}


class Expansion(NamedTuple):
    """A request with the stored items that it referred to, and the items of its conversation."""

    data: dict[str, Any]
    before: list[StoredItem]
    input: list[StoredItem]
    previous: str | None
    """The id of the previous response, where slipform stores it."""
    conversation: str | None
    """The id of the conversation, where slipform stores it."""
    has_vendor_state: bool
    """Whether the request still refers to responses or items that the vendor stores."""


class StoredCall(msgspec.Struct, frozen=True):
    """Stores the answer to one call, under the id that the first event of a stream already contains."""

    store: ResponseStore
    identity: str
    request: Expansion

    @property
    def options(self) -> dict[str, Any]:
        """The fields of the answer that describe its stored state."""
        options = {"store": True, "response_id": self.identity, "previous_response_id": self.request.previous}
        if self.request.conversation is not None:
            options["conversation"] = {"id": self.request.conversation}
        return options

    async def keep(self, data: bytes) -> None:
        """Store the answer: a whole body, or the last bytes of a stream."""
        response = _final_response(data)
        if response is None:
            return
        output = [stored_item(item) for item in response.pop("output", ())]
        request = self.request
        entry = ResponseEntry(
            self.store.clock(), _hashes(request.before), _hashes(request.input), _hashes(output), response
        )
        records = {response_key(self.identity): entry}
        items = [*request.before, *request.input, *output]

        def append_turn(conversation: ConversationEntry) -> None:
            conversation.items += [*entry.input, *entry.output]
            conversation.stored_at = entry.stored_at

        if request.conversation is not None:
            changed = await self.store.change_conversation(request.conversation, append_turn, items, records)
            if changed is not None:
                return
        await self.store.put(records, items)


def _hashes(items: Sequence[StoredItem]) -> list[str]:
    return [item_hash for item_hash, _ in items]


def _final_response(data: bytes) -> dict[str, Any] | None:
    """Return the response of a body or of a stream's last event; None where it failed or is missing."""
    text = data if data.startswith(b"{") else data.rpartition(b"\ndata: ")[2]
    try:
        answer = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    response = answer if answer.get("object") == "response" else answer.get("response")
    if isinstance(response, dict) and response.get("status") in ("completed", "incomplete"):
        return response
    return None


class OpenedCall(NamedTuple):
    """A request with its stored items, the answer's fields about stored state, and the storage of the answer."""

    parsed: ParsedBody
    options: Mapping[str, Any] = MappingProxyType({})
    stored: StoredCall | None = None
    """None where the vendor stores the answer, or it should not be stored."""


async def open_call(parsed: ParsedBody, store: ResponseStore, ownership: Ownership) -> OpenedCall:
    """Insert the items that slipform stores for the caller, and prepare to store the answer."""
    await ownership.check([each for each in parsed.references if each.provider is not None])
    vendor_stores = len(ownership.keepers) == len(ownership.providers)
    is_vendor_state = vendor_stores and len(ownership.providers) == 1
    if not ownership.providers or (is_vendor_state and OWN_ID.encode() not in parsed.body):
        return OpenedCall(parsed)
    expansion = await expand(parsed, store, vendor_stores=vendor_stores)
    data = expansion.data
    if data != parsed.data:
        references = find_references(data) if ownership.store is not None else ()
        parsed = ParsedBody(data, write_body(data), references)
    if is_vendor_state:
        return OpenedCall(parsed)
    unique_ids = UniqueCallIds.of(data.get("input"))
    options: dict[str, Any] = {} if unique_ids is None else {UNIQUE_CALL_IDS: unique_ids}
    if expansion.has_vendor_state or data.get("store") is False:
        return OpenedCall(parsed, options)
    stored = StoredCall(store, new_id("resp"), expansion)
    return OpenedCall(parsed, {**options, **stored.options}, stored)


async def expand(parsed: ParsedBody, store: ResponseStore, *, vendor_stores: bool) -> Expansion:
    """Insert the stored items that a request refers to into its input.

    Where the vendor stores responses, ids that slipform did not make are left to it. Raises `NoSuchResourceError` for
    an item that is not stored for this caller, and `TooLargeError` for a conversation that is too long.
    """
    data = parsed.data
    if data.get("previous_response_id") is not None and data.get("conversation") is not None:
        raise RequestError(
            "`previous_response_id` and `conversation` exclude each other",
            where="previous_response_id",
            hint="Send one of the two.",
        )
    previous = _resolved_here(data, "previous_response_id", vendor_stores)
    conversation = _resolved_here(data, "conversation", vendor_stores)
    hashes = await _hashes_before(previous, conversation, store)
    before = await _stored_items(hashes, store, previous)
    items = _input_items(data)
    referred = await _referred_items(items, store, vendor_stores=vendor_stores)
    is_changed = bool(before or referred)
    is_needed = is_changed or data.get("store") is not False
    inputs = await _maybe_off_loop(len(parsed.body), _stored_input, items, referred) if is_needed else []
    expanded = dict(data)
    if is_changed:
        _check_size([*before, *inputs], store.max_bytes)
        size = sum(len(each) for _, each in before) + len(parsed.body)
        expanded["input"] = await _maybe_off_loop(size, _sendable_items, [*before, *inputs], vendor_stores)
    if previous is not None:
        del expanded["previous_response_id"]
    if conversation is not None:
        del expanded["conversation"]
    has_vendor_state = any(expanded.get(name) is not None for name in ("previous_response_id", "conversation"))
    is_left = any(isinstance(item, dict) and is_reference(item) for item in _list_of(expanded.get("input")))
    return Expansion(expanded, before, inputs, previous, conversation, has_vendor_state or is_left)


def _resolved_here(data: Mapping[str, Any], field: str, vendor_stores: bool) -> str | None:
    """Return the id in a field if slipform has to look it up; None if the vendor does, or without an id."""
    value = data.get(field)
    if isinstance(value, dict):
        value = value.get("id")
    if value is None and data.get(field) is None:
        return None
    if not isinstance(value, str):
        raise RequestError("Expected an id", where=field, hint="Send a string.")
    if is_own_id(value) or not vendor_stores:
        return value
    return None


async def _hashes_before(previous: str | None, conversation: str | None, store: ResponseStore) -> list[str]:
    """Return the hashes of the items before a request; raises where the response or conversation is not stored."""
    if previous is not None:
        response = await store.response(previous)
        if response is None:
            raise NoPreviousResponseError(
                f"Previous response with id {previous[:100]!r} not found.", where="previous_response_id", hint=_EXPIRED
            )
        return [*response.before, *response.input, *response.output]
    if conversation is None:
        return []
    stored = await store.conversation(conversation)
    if stored is None:
        raise NoSuchResourceError(
            f"Conversation with id {conversation[:100]!r} not found.", where="conversation", hint=_NO_CONVERSATION
        )
    return stored.items


async def _stored_items(hashes: Sequence[str], store: ResponseStore, previous: str | None) -> list[StoredItem]:
    """Return the items before a request; `previous` is the response that they end with, if they have one."""
    items = await store.items(hashes)
    if any(each not in items for each in hashes):
        message = "A part of this conversation is not stored any more."
        if previous is not None:
            raise NoPreviousResponseError(message, where="previous_response_id", hint=_EXPIRED)
        raise NoSuchResourceError(message, where="conversation", hint=_NO_CONVERSATION)
    return [(each, items[each]) for each in hashes]


def _list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _input_items(data: Mapping[str, Any]) -> list[Any]:
    items = data.get("input")
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    return _list_of(items)


async def _referred_items(items: Sequence[Any], store: ResponseStore, *, vendor_stores: bool) -> dict[int, StoredItem]:
    """Return the stored items that a request refers to, by their index; raises `NoSuchResourceError` for others."""
    references = {
        at: str(item["id"])
        for at, item in enumerate(items)
        if isinstance(item, dict) and is_reference(item) and (is_own_id(item["id"]) or not vendor_stores)
    }
    hashes = await store.hashes(list(references.values()))
    stored = await store.items(list(dict.fromkeys(hashes.values())))
    referred: dict[int, StoredItem] = {}
    for at, identity in references.items():
        name = hashes.get(identity)
        if name is None or name not in stored:
            raise NoSuchResourceError(
                f"Item with id {identity[:100]!r} not found.", where=f"input[{at}].id", hint=_EXPIRED
            )
        referred[at] = (name, stored[name])
    return referred


async def _maybe_off_loop(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """Run `work` in a thread for a large request, else at once."""
    if size >= LARGE_BYTES:
        return await asyncio.to_thread(work, *arguments)
    return work(*arguments)


def _stored_input(items: Sequence[Any], referred: Mapping[int, StoredItem]) -> list[StoredItem]:
    """Return the items of a request in their stored form, with stored items in place of references."""
    inputs: list[StoredItem] = []
    for at, item in enumerate(items):
        if not isinstance(item, dict):
            raise RequestError("Expected an object", where=f"input[{at}]")
        inputs.append(referred[at] if at in referred else stored_item(item))
    return inputs


def _sendable_items(items: Sequence[StoredItem], vendor_stores: bool) -> list[dict[str, Any]]:
    sendable = [_sendable(each, vendor_stores=vendor_stores) for each in items]
    return [item for item in sendable if item is not None]


def _check_size(items: Sequence[StoredItem], most: int) -> None:
    if sum(len(data) for _, data in items) > most:
        raise TooLargeError(
            f"The conversation is longer than {most:,} bytes", where="input", hint="Begin a new one with a summary."
        )


def _sendable(item: StoredItem, *, vendor_stores: bool) -> dict[str, Any] | None:
    """Return an item without slipform's id, which a vendor would look up; None for an item to leave out."""
    sent: dict[str, Any] = orjson.loads(item[1])
    if not is_own_id(str(sent.get("id") or "")):
        return sent
    if sent.get("type") == "reasoning":
        return None if vendor_stores else sent
    return {name: value for name, value in sent.items() if name not in ("id", "status")}
