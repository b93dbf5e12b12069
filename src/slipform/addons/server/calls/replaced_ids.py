"""Map the ids that a caller saw in a stream to those of the answer that the vendor stores, and back.

The first event of a Responses stream names the response. If a later attempt became the answer, the vendor stores it
under another id, and so its items and calls. The ids are stored separately for each caller's key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from slipform.addons.server.calls.signature_stores import SignatureStore
from slipform.codecs.openai_responses.encode import NAME
from slipform.ir import ModelResponse, Text
from slipform.ir.parts import MESSAGE

_LONGEST_ID: Final = 256
_MOST_IDS: Final = 500
_KEPT: Final = "kept:"
_SEEN: Final = "seen:"


class ReplacedIds(msgspec.Struct, frozen=True):
    """The replaced ids of one caller."""

    store: SignatureStore
    caller: str

    async def keep(self, ids: Mapping[str, str]) -> None:
        """Store the vendor's ids of an answer, by the ids that the caller saw."""
        changed = {
            caller_id: vendor_id
            for caller_id, vendor_id in ids.items()
            if caller_id != vendor_id and len(caller_id) <= _LONGEST_ID
        }
        if not changed:
            return
        entries = {_KEPT + caller_id: vendor_id.encode() for caller_id, vendor_id in changed.items()}
        entries |= {_SEEN + vendor_id: caller_id.encode() for caller_id, vendor_id in changed.items()}
        await self.store.put(self.caller, entries)

    async def vendor_ids(self, caller_ids: Collection[str]) -> dict[str, str]:
        """Return the vendor's ids, by those of these ids that only the caller saw."""
        return await self._find(_KEPT, caller_ids)

    async def caller_ids(self, vendor_ids: Collection[str]) -> dict[str, str]:
        """Return the ids that the caller saw, by those of these ids that only the vendor has."""
        return await self._find(_SEEN, vendor_ids)

    async def _find(self, prefix: str, ids: Collection[str]) -> dict[str, str]:
        keys = [prefix + each for each in ids if each and len(each) <= _LONGEST_ID][:_MOST_IDS]
        entries = await self.store.get(self.caller, keys) if keys else {}
        return {key.removeprefix(prefix): value.decode("utf-8", "replace") for key, value in entries.items()}


def named_ids(data: Mapping[str, Any]) -> set[str]:
    """Return the ids by which a Responses request refers to stored responses and items.

    Calls that are sent whole, with their results, need no stored ids.

    >>> sorted(named_ids({"previous_response_id": "resp_1", "input": [{"type": "x_output", "call_id": "c1"}]}))
    ['c1', 'resp_1']
    """
    before = data.get("previous_response_id")
    ids = {before} if isinstance(before, str) else set()
    ids.update(str(item["id"]) for item in _items(data) if is_reference(item))
    if ids or data.get("conversation") is not None:
        ids.update(str(item["call_id"]) for item in _items(data) if isinstance(item.get("call_id"), str))
    return ids


def with_vendor_ids(data: Mapping[str, Any], vendor_ids: Mapping[str, str]) -> dict[str, Any]:
    """Return the request with the vendor's ids."""
    changed = dict(data)
    before = changed.get("previous_response_id")
    if isinstance(before, str):
        changed["previous_response_id"] = vendor_ids.get(before, before)
    if isinstance(changed.get("input"), list):
        changed["input"] = [_item_with_vendor_ids(item, vendor_ids) for item in changed["input"]]
    return changed


def _item_with_vendor_ids(item: Any, vendor_ids: Mapping[str, str]) -> Any:
    if not isinstance(item, dict):
        return item
    names = ("id", "call_id") if is_reference(item) else ("call_id",)
    return {**item, **{name: vendor_ids[item[name]] for name in names if item.get(name) in vendor_ids}}


def _items(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    items = data.get("input")
    if isinstance(items, list):
        return (item for item in items if isinstance(item, dict))
    return iter(())


def is_reference(item: Mapping[str, Any]) -> bool:
    """Return whether an item of a request's input only refers to a stored one."""
    kind = item.get("type")
    return isinstance(item.get("id"), str) and (kind == "item_reference" or (kind is None and "role" not in item))


def replaced_in(
    shown_id: str, answer: ModelResponse, calls: Mapping[str, str], messages: Sequence[str]
) -> dict[str, str]:
    """Return the ids of a stream that began under `shown_id`, each with the corresponding id of the stored answer.

    `messages` are the ids of its messages.
    """
    ids = dict(calls)
    if answer.id:
        ids[shown_id] = answer.id
    fields = [part.extra.get(NAME, {}).get(MESSAGE, {}) for part in answer.parts if isinstance(part, Text)]
    vendor_ids = dict.fromkeys(each["id"] for each in fields if isinstance(each.get("id"), str))
    ids.update(zip(messages, vendor_ids, strict=False))
    return ids
