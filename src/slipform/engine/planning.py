"""Which plan an answer is held to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from slipform.bounded import BoundedCache
from slipform.codecs import Capabilities
from slipform.enforce import Formatter, Guard, Plan, Wording
from slipform.engine.setup import LOCAL, Options, Price, cost_of, price_of
from slipform.errors import SlipformError
from slipform.ir import ModelRequest, NamedTool, Usage
from slipform.ir.request import is_heavy
from slipform.off_loop import off_loop
from slipform.providers import Provider
from slipform.providers.router import Router
from slipform.schema import OutputStrategy, ResponseFormat, Schema
from slipform.schema.python_types import cached_schema

_STRENGTH = (OutputStrategy.PROMPTED, OutputStrategy.TOOL, OutputStrategy.NATIVE)


def plan_for(router: Router, request: ModelRequest, options: Options, schema: Schema[Any] | None = None) -> Plan:
    """How the answer to this request is to be enforced, by what its model can do.

    `schema` is the request's own, where the caller has it: with a Python type behind it, whose validators count too.
    """
    provider, upstream = router.resolve(request.model)
    capabilities = provider.capabilities(upstream)
    wanted, local = request.response_format, provider.name == LOCAL
    shape = schema or _text_of(wanted)
    if wanted is None or shape is None or not _keeps(request, options):
        return _planned(router, request, options, schema, capabilities, local=local)
    key = (shape, wanted.strategy, local)
    kept = _PLANS.get(key)
    if kept is None or not kept.is_for(options, capabilities):
        made = _planned(router, request, options, schema, capabilities, local=local)
        kept = _CachedPlan(options, capabilities, made)
        size = _TIMES_TEXT * len(orjson.dumps(wanted.json_schema.schema, default=repr))
        _PLANS.put(key, kept, _LEAST + size)
    return kept.plan


def _text_of(wanted: ResponseFormat | None) -> tuple[str, bytes] | None:
    """Name and text of a shape that nobody can change."""
    spec = None if wanted is None else wanted.json_schema
    return None if spec is None or spec.text is None else (spec.name, spec.text)


@dataclass(frozen=True, slots=True)
class _CachedPlan:
    """A plan, and what it was made of besides the shape."""

    options: Options
    capabilities: Capabilities
    plan: Plan

    def is_for(self, options: Options, capabilities: Capabilities) -> bool:
        same = self.options is options or self.options == options  # a call with options of its own makes them anew
        return same and (self.capabilities is capabilities or self.capabilities == capabilities)


_PLANS = BoundedCache[tuple[Schema[Any] | tuple[str, bytes], OutputStrategy, bool], _CachedPlan](
    "plans", entries=128, max_bytes=32_000_000
)
"""By shapes that nobody can change: a `Schema`, or name and text of what `cached_format` has made."""
_LEAST = 5_000
_TIMES_TEXT = 50
"""How many bytes a plan keeps alive for each byte of its schema's text, once nobody else holds that schema."""


def _keeps(request: ModelRequest, options: Options) -> bool:
    """Whether the plan hangs on nothing but shape, options and capabilities: on no tools, no guard, no router."""
    if request.tools or options.formatter or options.prices:
        return False
    return not request.extra or Guard.of(request.extra, options.guard) is options.guard


def _planned(
    router: Router,
    request: ModelRequest,
    options: Options,
    schema: Schema[Any] | None,
    capabilities: Capabilities,
    *,
    local: bool,
) -> Plan:
    wanted = request.response_format
    strategy = OutputStrategy.AUTO if wanted is None else wanted.strategy
    chosen, stronger, wording = _channel(capabilities, strategy, options)
    return Plan(
        schema=schema or wanted_schema(request),
        strategy=chosen,
        stronger=stronger,
        wording=wording,
        budget=options.budget,
        tools=enforced_tools(request, options),
        must_call=requires_call(request, options),
        calls=bool(request.tools),
        formatter=_formatter(router, request, options),
        reask_scope=options.reask_scope,
        switches=options.switches,
        repair=options.repair,
        validators=options.validators,
        on_failure=options.on_failure,
        guard=Guard.of(request.extra, options.guard),
        guarded_decoding=local,
        backoff_seconds=options.backoff_seconds,
        keep_text=options.keep_text,
        price=_pricing(router, options.prices) if options.prices else None,
    )


def _pricing(router: Router, prices: Mapping[str, Price]) -> Callable[[str, Usage], float | None]:
    """What a call under a name of the router's cost; None where no price or no count of tokens is known."""

    def cost(model: str, usage: Usage) -> float | None:
        provider, upstream = router.resolve(model)
        return cost_of(price_of(prices, f"{provider.name}/{upstream}"), usage)

    return cost


def routed(router: Router, request: ModelRequest) -> tuple[Provider, ModelRequest]:
    """Who answers, and the request under the upstream's own name for the model; counted as a call."""
    provider, upstream = router.resolve(request.model)
    if request.calls is not None:
        request.calls.add(f"{provider.name}/{upstream}")
    return provider, request.replace(model=upstream)


def wanted_schema(request: ModelRequest) -> Schema[Any] | None:
    """What the text of the answer is held to: the schema that was asked for, any object in JSON mode, or nothing."""
    if request.response_format is not None:
        return cached_schema(request.response_format.json_schema)
    return _any_object() if request.json_mode else None


@lru_cache(maxsize=1)
def _any_object() -> Schema[Any]:
    return Schema("object", {"type": "object"})


def enforced_tools(request: ModelRequest, options: Options) -> dict[str, Schema[Any]]:
    """What the arguments of each tool are held to."""
    return {tool.name: Schema(tool.name, tool.parameters) for tool in request.tools if options.tools == "enforce"}


def requires_call(request: ModelRequest, options: Options) -> tuple[str, ...]:
    """The tools of which the model has to call one; none when it is free to, or when tools are not held."""
    if options.tools != "enforce":
        return ()
    names = tuple(tool.name for tool in request.tools)
    if isinstance(request.tool_choice, NamedTool):
        return tuple(name for name in names if name == request.tool_choice.name)
    return names if request.tool_choice == "required" else ()


def _channel(
    capabilities: Capabilities, wanted: OutputStrategy, options: Options
) -> tuple[OutputStrategy, tuple[OutputStrategy, ...], Wording]:
    """The strategy, the stronger ones this model also has, and how the prompt is worded."""
    chosen = capabilities.auto_strategy if wanted is OutputStrategy.AUTO else wanted
    has = {OutputStrategy.NATIVE: capabilities.native, OutputStrategy.TOOL: capabilities.forced_tool}
    stronger = tuple(each for each in _STRENGTH[_STRENGTH.index(chosen) + 1 :] if has[each])
    wording = Wording("list_keys" in capabilities.quirks, options.max_schema_chars, options.descriptions)
    return chosen, stronger, wording


def _formatter(router: Router, request: ModelRequest, options: Options) -> Formatter | None:
    named = _embedded(router, request) if options.formatter == "auto" else options.formatter
    if named is None:
        return None
    provider, upstream = router.resolve(named)
    strategy, _, wording = _channel(provider.capabilities(upstream), OutputStrategy.AUTO, options)
    return Formatter(named, strategy, wording)


def _embedded(router: Router, request: ModelRequest) -> str | None:
    """The embedded model, where its weights are here already and another model is asked."""
    try:
        provider, _ = router.resolve(LOCAL)
    except SlipformError:
        return None
    asked, _ = router.resolve(request.model)
    return LOCAL if provider is not asked and provider.name == LOCAL and _is_installed() else None


def _is_installed() -> bool:
    from slipform.providers.embedded.weights import DEFAULT, find, known

    return find(known(DEFAULT)) is not None


async def plan_async(
    router: Router, request: ModelRequest, options: Options, schema: Schema[Any] | None = None
) -> Plan:
    """`plan_for`, with large schemas compiled off the event loop."""
    given = (router, request, options, schema)
    return await off_loop(plan_for, *given) if is_heavy(request) else plan_for(*given)
