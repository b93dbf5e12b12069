"""Refuse fields that the provider of a call cannot honour, and references to what is not the caller's own.

To go on without such a field would lose the conversation so far, or the shape that was asked for, and nobody would be
told; to go on with another key's file or response would show it to a stranger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from slipform.codecs.foreign_fields import grammar_field
from slipform.codecs.model_name import shown
from slipform.errors import RequestError
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.proxy.calls.resources import ResourceStore, unmark

RESPONSES: Final = "openai-responses"
STATE: Final = ("previous_response_id", "conversation", "prompt")
"""Fields of a Responses request that name what only the vendor who keeps it can look up."""
_STORED_ITEMS: Final = frozenset({"item_reference", "compaction"})
_GRAMMARS: Final = frozenset({"structured_outputs", "guided_regex", "guided_grammar", "grammar"})


class UnsupportedFieldError(RequestError):
    """A field that the provider of this call cannot honour."""

    code = "unsupported_field"


def check_honoured(api: str, data: Mapping[str, Any], models: Sequence[str], router: Router) -> None:
    """Raise `UnsupportedFieldError` for the first field that one of the models' providers would ignore.

    >>> check_honoured("openai-chat", {"model": "m"}, ["m"], Router({}))
    """
    if api == RESPONSES:
        found = next(state_fields(data), None)
        if found is None:
            return
        for name, provider, _ in _providers(models, router):
            if not isinstance(provider, HttpProvider) or provider.api != RESPONSES:
                raise UnsupportedFieldError(
                    f"The provider of {shown(name)} keeps no state, so {found} cannot be honoured",
                    where=found,
                    hint="Send the whole conversation in `input`, or use a provider of kind `openai-responses`.",
                )
    elif not _GRAMMARS.isdisjoint(data) and (found := grammar_field(data)) is not None:
        quirk, kind = ("gbnf", "llamacpp") if found == "grammar" else ("guided", "vllm")
        for name, provider, upstream in _providers(models, router):
            if not isinstance(provider, HttpProvider) or quirk not in provider.capabilities(upstream).quirks:
                raise UnsupportedFieldError(
                    f"The provider of {shown(name)} is not known to read {found}",
                    where=found,
                    hint=f"Send a JSON Schema, or give the provider `kind: {kind}` if it is one.",
                )


def state_fields(data: Mapping[str, Any]) -> Iterator[str]:
    """The places in a Responses request that need a vendor who keeps state."""
    for name in STATE:
        if data.get(name) is not None:
            yield name
    if data.get("background") is True:
        yield "background"
    items = data.get("input")
    for at, item in enumerate(items if isinstance(items, list) else ()):
        kind = item.get("type") if isinstance(item, Mapping) else None
        if isinstance(kind, str) and kind in _STORED_ITEMS:
            yield f"input[{at}].type"


def _providers(models: Sequence[str], router: Router) -> Iterator[tuple[str, object, str]]:
    for name in _candidates(models, router):
        provider, upstream = router.resolve(name)
        yield name, provider, upstream


_FILES: Final = frozenset({"file_id", "file_ids", "input_file_id"})
FILE_WORD: Final = b"file_id"
"""What stands in every body that refers to a file."""
_DEEPEST: Final = 64


class References(NamedTuple):
    """A request whose references are the caller's, in the vendor's own ids, and what those were called before."""

    data: dict[str, Any]
    is_changed: bool = False
    marks: Mapping[str, str] = MappingProxyType({})
    """The caller's ids by the vendor's."""


async def resolve_references(
    api: str,
    data: dict[str, Any],
    body: bytes,
    providers: Collection[str],
    store: ResourceStore | None,
    key: str,
) -> References:
    """Take the marks off a request's references; raises `NoSuchResourceError` for what another key, or nobody, made.

    `providers` are those that may be asked: what a request names must be the caller's at each of them.
    """
    if store is not None and FILE_WORD in body:
        for identity in dict.fromkeys(file_ids(data)):
            await _check_own(store, "file", identity, key, providers)
    if api != RESPONSES:
        return References(data)
    before = data.get("previous_response_id")
    if isinstance(before, str) and before:
        marked, identity = unmark(before)
        if marked is not None and set(providers) != {marked}:
            raise UnsupportedFieldError(
                f"The response {before[:100]!r} is kept by the provider {marked!r}, which is not asked here",
                where="previous_response_id",
                hint=f"Go on with a model of {marked!r}, or send the whole conversation in `input`.",
            )
        if store is not None:
            await _check_own(store, "response", identity, key, providers)
        data = {**data, "previous_response_id": identity}
    if store is not None:
        held = data.get("conversation")
        conversation = held.get("id") if isinstance(held, Mapping) else held
        if isinstance(conversation, str):
            await _check_own(store, "conversation", conversation, key, providers)
        for item in data["input"] if isinstance(data.get("input"), list) else ():
            if isinstance(item, Mapping) and item.get("type") == "item_reference":
                await _check_own(store, "item", str(item.get("id")), key, providers)
    if not isinstance(before, str) or data["previous_response_id"] == before:
        return References(data)
    return References(data, True, {data["previous_response_id"]: before})


async def _check_own(store: ResourceStore, kind: str, identity: str, key: str, providers: Collection[str]) -> None:
    for provider in providers:
        await store.provider_of(kind, identity, key, provider)


def provider_names(models: Sequence[str], router: Router) -> set[str]:
    """The names of the providers that may be asked for these models."""
    return {router.full_name(name).partition("/")[0] for name in _candidates(models, router)} if models else set()


def keeper_of(models: Sequence[str], router: Router) -> str | None:
    """The provider that keeps the responses of these models; None where not all are of one that does."""
    names = provider_names(models, router)
    name = names.pop() if len(names) == 1 else None
    provider = router.providers.get(name or "")
    return name if isinstance(provider, HttpProvider) and provider.api == RESPONSES else None


def _candidates(models: Sequence[str], router: Router) -> Sequence[str]:
    return router.candidates(models if len(models) != 1 else models[0])


def file_ids(value: Any, depth: int = 0) -> Iterator[str]:
    """The ids of files that stand anywhere in a request."""
    if depth > _DEEPEST:
        return
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name not in _FILES:
                yield from file_ids(item, depth + 1)
            elif isinstance(item, str):
                yield item
            elif isinstance(item, list):
                yield from (each for each in item if isinstance(each, str))
    elif isinstance(value, list):
        for item in value:
            yield from file_ids(item, depth + 1)
