"""Refuse fields that the provider of a call cannot honour.

To continue without such a field would lose the conversation so far, or the requested shape, without the caller
noticing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from slipform.codecs.foreign_fields import grammar_field
from slipform.codecs.model_name import excerpt_of
from slipform.errors import RequestError
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router

RESPONSES: Final = "openai-responses"
STATE: Final = ("previous_response_id", "conversation", "prompt")
"""Fields of a Responses request that only the vendor that stores the response can look up."""
_STORED_ITEMS: Final = frozenset({"item_reference", "compaction"})
_GRAMMARS: Final = frozenset({"structured_outputs", "guided_regex", "guided_grammar", "grammar"})


class UnsupportedFieldError(RequestError):
    """A field that the provider of this call cannot honour."""

    code = "unsupported_field"


def refuse_unsupported(api: str, data: Mapping[str, Any], models: Sequence[str], router: Router) -> None:
    """Raise `UnsupportedFieldError` for the first field that one of the models' providers would ignore.

    >>> refuse_unsupported("openai-chat", {"model": "m"}, ["m"], Router({}))
    """
    if api == RESPONSES:
        _refuse_responses_fields(data, models, router)
    elif not _GRAMMARS.isdisjoint(data) and (field := grammar_field(data)) is not None:
        _refuse_grammar(field, models, router)


def _refuse_responses_fields(data: Mapping[str, Any], models: Sequence[str], router: Router) -> None:
    """Raise for stored state, or else a tool search by the client, unless every provider has the Responses API."""
    field = next(state_fields(data), None)
    search = None if field is not None else _client_search(data)
    if field is None and search is None:
        return
    for name, provider, _ in _providers(models, router):
        if isinstance(provider, HttpProvider) and provider.api == RESPONSES:
            continue
        if field is None:
            raise UnsupportedFieldError(
                f"The provider of {excerpt_of(name)} does not support tool search by the client",
                where=search,
                hint="Offer the tools themselves, or use a provider of kind `openai-responses`.",
            )
        raise UnsupportedFieldError(
            f"The provider of {excerpt_of(name)} stores no state, so {field} cannot be honoured",
            where=field,
            hint="Send the whole conversation in `input`, or use a provider of kind `openai-responses`.",
        )


def _refuse_grammar(field: str, models: Sequence[str], router: Router) -> None:
    """Raise for a field with a grammar unless every provider is known to read it."""
    quirk, kind = ("gbnf", "llamacpp") if field == "grammar" else ("guided", "vllm")
    for name, provider, upstream in _providers(models, router):
        if not isinstance(provider, HttpProvider) or quirk not in provider.capabilities(upstream).quirks:
            raise UnsupportedFieldError(
                f"The provider of {excerpt_of(name)} is not known to read {field}",
                where=field,
                hint=f"Send a JSON Schema, or give the provider `kind: {kind}` if it is one.",
            )


def state_fields(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields of a Responses request that need a vendor that stores responses."""
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


def _client_search(data: Mapping[str, Any]) -> str | None:
    """Return the field of a tool search that the client runs: a vendor without it could not request one."""
    tools = data.get("tools")
    for at, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, Mapping) and tool.get("type") == "tool_search" and tool.get("execution") == "client":
            return f"tools[{at}].execution"
    return None


def _providers(models: Sequence[str], router: Router) -> Iterator[tuple[str, object, str]]:
    for name in _candidates(models, router):
        provider, upstream = router.resolve(name)
        yield name, provider, upstream


def provider_names(models: Sequence[str], router: Router) -> set[str]:
    """Return the names of the providers that may serve these models."""
    if models:
        return {router.full_name(name).partition("/")[0] for name in _candidates(models, router)}
    return set()


def response_stores_of(providers: Collection[str], router: Router) -> list[str]:
    """Return the providers that speak the Responses API, which stores responses and items."""
    named_providers = ((name, router.providers.get(name)) for name in providers)
    return [name for name, each in named_providers if isinstance(each, HttpProvider) and each.api == RESPONSES]


def _candidates(models: Sequence[str], router: Router) -> Sequence[str]:
    return router.candidates(models if len(models) != 1 else models[0])
