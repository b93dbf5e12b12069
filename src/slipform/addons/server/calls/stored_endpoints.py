"""Answer the endpoints of responses and conversations that slipform itself stores, as OpenAI answers them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from slipform.addons.server.calls.endpoints import EndpointRow
from slipform.addons.server.calls.resources import NoSuchResourceError
from slipform.addons.server.calls.stored_responses import (
    ConversationEntry,
    ResponseEntry,
    ResponseStore,
    StoredItem,
    conversation_key,
    is_own_id,
    new_id,
    shown_item,
    stored_item,
)
from slipform.errors import RequestError

_CONVERSATIONS: Final = "/v1/conversations"
_MOST_ITEMS: Final = 20
"""The most items that a request may add to a conversation, as in OpenAI's API."""
_LARGEST_PAGE: Final = 100
_PAGE: Final = 20


class StoredRequest(NamedTuple):
    """A request for one of these endpoints."""

    store: ResponseStore
    segments: Mapping[str, str]
    query: Mapping[str, str]
    data: Mapping[str, Any]


def is_stored_here(row: EndpointRow, segments: Mapping[str, str], *, has_provider: bool) -> bool:
    """Return whether slipform stores the resource: by its id, or a new conversation that no provider can store.

    `has_provider` says whether one of the providers has this endpoint, or the request names a provider.
    """
    if row.path == _CONVERSATIONS:
        return not has_provider
    return row.owner_kind() in ("response", "conversation") and is_own_id(segments[row.owner_kind()])


async def answer_stored(row: EndpointRow, request: StoredRequest) -> dict[str, Any]:
    """Return the body of the answer; raises `NoSuchResourceError` for a resource that is not stored for the caller."""
    return await _ANSWERS[row.method, row.path](request)


async def _response(request: StoredRequest) -> tuple[str, ResponseEntry]:
    identity = request.segments["response"]
    entry = await request.store.response(identity)
    if entry is None:
        raise NoSuchResourceError(f"Response with id {identity[:100]!r} not found.", where="response")
    return identity, entry


def _required(identity: str, entry: ConversationEntry | None) -> ConversationEntry:
    if entry is None:
        raise NoSuchResourceError(f"Conversation with id {identity[:100]!r} not found.", where="conversation")
    return entry


async def _conversation(request: StoredRequest) -> tuple[str, ConversationEntry]:
    identity = request.segments["conversation"]
    return identity, _required(identity, await request.store.conversation(identity))


async def _changed_conversation(
    request: StoredRequest, change: Callable[[ConversationEntry], None], items: Sequence[StoredItem] = ()
) -> tuple[str, ConversationEntry]:
    identity = request.segments["conversation"]
    return identity, _required(identity, await request.store.change_conversation(identity, change, items))


async def _items(store: ResponseStore, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the items with these hashes, without expired ones."""
    stored = await store.items(names)
    return [shown_item(name, stored[name]) for name in names if name in stored]


async def _show_response(request: StoredRequest) -> dict[str, Any]:
    if request.query.get("stream") == "true":
        raise RequestError("A stored response is not streamed again", where="stream", hint="Leave `stream` out.")
    _, entry = await _response(request)
    stored = await request.store.items(entry.output)
    return {**entry.response, "output": [orjson.loads(stored[name]) for name in entry.output if name in stored]}


async def _delete_response(request: StoredRequest) -> dict[str, Any]:
    identity, entry = await _response(request)
    await request.store.remove_response(identity, entry)
    return {"id": identity, "object": "response", "deleted": True}


async def _cancel_response(request: StoredRequest) -> dict[str, Any]:
    await _response(request)
    raise RequestError("Only background responses can be cancelled", where="response")


async def _list_input(request: StoredRequest) -> dict[str, Any]:
    _, entry = await _response(request)
    return _page(await _items(request.store, [*entry.before, *entry.input]), request.query)


def _page(sorted_items: list[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """Return one page of a list, newest first unless the query says otherwise."""
    is_newest_first = query.get("order", "desc") == "desc"
    items = sorted_items[::-1] if is_newest_first else sorted_items
    after = query.get("after")
    if after:
        ids = [item["id"] for item in items]
        items = items[ids.index(after) + 1 :] if after in ids else []
    text = query.get("limit", str(_PAGE))
    if not text.isascii() or not text.isdigit() or len(text) > 3 or not 0 < int(text) <= _LARGEST_PAGE:
        raise RequestError("Expected a number from 1 to 100", where="limit")
    page = items[: int(text)]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, "has_more": len(items) > len(page), **ends}


def _conversation_body(identity: str, entry: ConversationEntry) -> dict[str, Any]:
    return {"id": identity, "object": "conversation", "created_at": entry.created_at, "metadata": entry.metadata}


def _metadata(data: Mapping[str, Any]) -> dict[str, Any]:
    metadata = data.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise RequestError("Expected an object", where="metadata")
    return metadata


def _new_items(data: Mapping[str, Any]) -> list[StoredItem]:
    items = data.get("items") or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise RequestError("Expected an array of items", where="items")
    if len(items) > _MOST_ITEMS:
        raise RequestError(f"More than {_MOST_ITEMS} items at a time", where="items", hint="Send several requests.")
    return [stored_item(item) for item in items]


async def _create(request: StoredRequest) -> dict[str, Any]:
    store = request.store
    items = _new_items(request.data)
    now = store.clock()
    entry = ConversationEntry(now, int(now), [name for name, _ in items], _metadata(request.data))
    identity = new_id("conv")
    await store.put({conversation_key(identity): entry}, items)
    return _conversation_body(identity, entry)


async def _show_conversation(request: StoredRequest) -> dict[str, Any]:
    return _conversation_body(*await _conversation(request))


async def _update(request: StoredRequest) -> dict[str, Any]:
    metadata = _metadata(request.data)

    def set_metadata(entry: ConversationEntry) -> None:
        entry.metadata = metadata

    return _conversation_body(*await _changed_conversation(request, set_metadata))


async def _delete_conversation(request: StoredRequest) -> dict[str, Any]:
    identity, _ = await _conversation(request)
    await request.store.remove_conversation(identity)
    return {"id": identity, "object": "conversation.deleted", "deleted": True}


async def _list_items(request: StoredRequest) -> dict[str, Any]:
    _, entry = await _conversation(request)
    return _page(await _items(request.store, entry.items), request.query)


async def _add_items(request: StoredRequest) -> dict[str, Any]:
    items = _new_items(request.data)

    def append_items(entry: ConversationEntry) -> None:
        entry.items += [name for name, _ in items]

    await _changed_conversation(request, append_items, items)
    return _page([shown_item(*item) for item in items], {"order": "asc", "limit": str(_LARGEST_PAGE)})


async def _named_item(request: StoredRequest) -> tuple[str, dict[str, Any]]:
    """Return an item of a conversation by its id, and its hash."""
    _, entry = await _conversation(request)
    name = request.segments["item"]
    stored = await request.store.items(entry.items)
    for each in entry.items:
        if each in stored and (item := shown_item(each, stored[each]))["id"] == name:
            return each, item
    raise NoSuchResourceError(f"Item with id {name[:100]!r} not found.", where="item")


async def _show_item(request: StoredRequest) -> dict[str, Any]:
    _, item = await _named_item(request)
    return item


async def _delete_item(request: StoredRequest) -> dict[str, Any]:
    name, _ = await _named_item(request)

    def delete_item(entry: ConversationEntry) -> None:
        if name in entry.items:
            entry.items.remove(name)

    return _conversation_body(*await _changed_conversation(request, delete_item))


_Answer: TypeAlias = Callable[[StoredRequest], Awaitable[dict[str, Any]]]
_RESPONSE_PATH: Final = "/v1/responses/{response}"
_CONVERSATION_PATH: Final = f"{_CONVERSATIONS}/{{conversation}}"
_ANSWERS: Final[Mapping[tuple[str, str], _Answer]] = {
    ("GET", _RESPONSE_PATH): _show_response,
    ("DELETE", _RESPONSE_PATH): _delete_response,
    ("POST", f"{_RESPONSE_PATH}/cancel"): _cancel_response,
    ("GET", f"{_RESPONSE_PATH}/input_items"): _list_input,
    ("POST", _CONVERSATIONS): _create,
    ("GET", _CONVERSATION_PATH): _show_conversation,
    ("POST", _CONVERSATION_PATH): _update,
    ("DELETE", _CONVERSATION_PATH): _delete_conversation,
    ("GET", f"{_CONVERSATION_PATH}/items"): _list_items,
    ("POST", f"{_CONVERSATION_PATH}/items"): _add_items,
    ("GET", f"{_CONVERSATION_PATH}/items/{{item}}"): _show_item,
    ("DELETE", f"{_CONVERSATION_PATH}/items/{{item}}"): _delete_item,
}
