"""Resolve the model of a call, once for all attempts, and plan the requirements on its answers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias

from slipform.bounded import BoundedCache
from slipform.codecs import BoundCodec, Capabilities
from slipform.codecs.schema_channel import refuse_reserved, wraps_root
from slipform.enforce import Formatter, Guard, Plan, Wording
from slipform.enforce.plan import SplitPlan
from slipform.engine.drive import AsyncModel, Model, evidence_collector
from slipform.engine.parts import split_plan
from slipform.engine.setup import LOCAL, Options, local_models
from slipform.errors import ConfigError, SlipformError
from slipform.ir import RESERVED_TOOL, CompletionChunk, ModelRequest, ModelResponse, NamedTool
from slipform.ir.request import CallCount, RequestFrame, is_heavy
from slipform.ir.response import ChunkSink
from slipform.prices import AnyPrice, Price, find_price, is_known
from slipform.providers import Provider
from slipform.providers.concurrency import off_loop
from slipform.providers.endpoint import Version
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.schema import OutputStrategy, ResponseFormat, Schema
from slipform.schema.limits import json_text
from slipform.schema.python_types import cached_schema
from slipform.schema.shape import estimated_bytes

_STRENGTH = (OutputStrategy.PROMPTED, OutputStrategy.TOOL, OutputStrategy.NATIVE)


class ModelRoute:
    """The route of one call: the provider and model behind the requested name. Created when the call arrives."""

    __slots__ = ("full_name", "model", "name", "price_list_id", "provider", "router")

    def __init__(self, router: Router, name: str) -> None:
        """Raise `UnknownModelError`; an empty name is the default model."""
        self.router: Final = router
        self.name: Final = name
        """The requested name, as the requests of the call carry it."""
        self.provider, self.model = router.resolve(name)
        self.full_name: Final = f"{self.provider.name}/{self.model}"
        self.price_list_id: Final = price_list(self.provider)
        """The provider's id in the price list; empty if it is not listed."""

    @property
    def blocking(self) -> Model:
        """Sends its requests, blocking; used by `engine.drive`."""
        return Model(self.complete, self.stream)

    @property
    def awaited(self) -> AsyncModel:
        """Sends its requests on an event loop; used by `engine.drive`."""
        return AsyncModel(self.complete_async, self.batches_async)

    def complete(self, request: ModelRequest) -> ModelResponse:
        """Return a whole answer, blocking."""
        provider, request = self._addressed(request)
        return provider.complete(request)

    def stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        """Return an answer piece by piece, blocking."""
        provider, request = self._addressed(request)
        return provider.stream(request)

    def complete_async(self, request: ModelRequest) -> Coroutine[Any, Any, ModelResponse]:
        """Return a whole answer."""
        provider = self.provider
        if request.model == self.name and type(provider) is HttpProvider:
            self.count_call(request.calls)
            return provider.complete_async(request, self.model)
        provider, request = self._addressed(request)
        return provider.complete_async(request)

    def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """Return an answer piece by piece."""
        provider, request = self._addressed(request)
        return provider.stream_async(request)

    def batches_async(self, request: ModelRequest, sink: ChunkSink) -> AsyncGenerator[Sequence[CompletionChunk], None]:
        """Send the answer to a sink; chunks that arrived together are passed on together."""
        provider, request = self._addressed(request)
        return provider.batches_async(request, sink)

    def _addressed(self, request: ModelRequest) -> tuple[Provider, ModelRequest]:
        """Return the provider and its request, with its own name for the model; counts the call."""
        route = self if request.model == self.name else ModelRoute(self.router, request.model)  # the formatter's model
        route.count_call(request.calls)
        return route.provider, request.replace(model=route.model)

    def count_call(self, calls: CallCount | None) -> None:
        """Count a call to the model."""
        if calls is not None:
            calls.model = self.full_name
            calls.price_list = self.price_list_id
            calls.add(self.full_name)

    def price(self, prices: Mapping[str, Price]) -> AnyPrice | None:
        """Return the price of the model: from these prices, else from the list that ships with slipform."""
        return find_price(prices, self.full_name, self.price_list_id)

    def plan(self, request: ModelRequest, options: Options, schema: Schema[Any] | None = None) -> Plan:
        """Return the plan for a request to this model, based on the model's capabilities.

        `schema` is the request's own, if the caller has it: it may have a Python type, whose validators also count.
        """
        if (wanted_evidence := options.evidence) is not None:
            plan = self.plan(request, dataclasses.replace(options, evidence=None), schema)
            return evidence_collector().prepare(plan, request, wanted_evidence)
        if options.budget.money is not None:
            _check_price(self, options)
        if (frame_plan := self.find_plan(request, options, schema)) is not None:
            return frame_plan
        version = self._version
        plan = self._uncached_plan(request, options, schema)
        if request.frame is not None and version is not None and _depends_on_request_only(options):
            request.frame.keep((self, options.keep_text, schema), _CachedPlan(options, plan, version))
        return plan

    def _uncached_plan(self, request: ModelRequest, options: Options, schema: Schema[Any] | None) -> Plan:
        response_format = request.response_format
        provider = self.provider
        shape = schema or _text_of(response_format)
        if response_format is None or shape is None or not _is_cacheable(request, options):
            return _planned(self, request, options, schema, self._capabilities(request, schema))
        speaker = self._codec_key(response_format)
        key = (shape, response_format.strategy, response_format.strict, speaker, _provider_guard(provider))
        cached = _PLANS.get(key)
        if cached is None or (cached.options is not options and cached.options != options):
            plan = _planned(self, request, options, schema, self._capabilities(request, schema))
            cached = _CachedPlan(options, plan)
            _PLANS.put(key, cached, estimated_bytes(json_text(response_format.json_schema.schema)))
        return cached.plan

    def find_plan(self, request: ModelRequest, options: Options, schema: Schema[Any] | None = None) -> Plan | None:
        """Return the plan of an earlier request of the same frame, while the provider has not changed."""
        if request.frame is None or options.evidence is not None:
            return None
        cached = request.frame.find((self, options.keep_text, schema))
        if not isinstance(cached, _CachedPlan) or cached.options is not options:
            return None
        return cached.plan if cached.version == getattr(self.provider, "version", None) else None

    @property
    def _version(self) -> Version | None:
        """Return the provider's version, on whose change plans are rebuilt; None if it is unknown."""
        return getattr(self.provider, "version", None)

    def _codec_key(self, response_format: ResponseFormat | None) -> BoundCodec | Capabilities:
        """Return the key of the model's plans; it changes with every recorded downgrade."""
        if response_format is None or not isinstance(self.provider, HttpProvider):
            return self.provider.capabilities(self.model)
        return self.provider.codec_for(self.model, response_format)

    def _capabilities(self, request: ModelRequest, schema: Schema[Any] | None) -> Capabilities:
        if request.response_format is None or not isinstance(self.provider, HttpProvider):
            return self.provider.capabilities(self.model)
        if schema is None:
            wanted_schema(request)  # raises for an invalid schema before anything is built from it
        return self.provider.capabilities_for(request.replace(model=self.model))

    async def plan_async(self, request: ModelRequest, options: Options, schema: Schema[Any] | None = None) -> Plan:
        """Do the same as `plan`, compiling large schemas off the event loop."""
        if is_heavy(request) and self.find_plan(request, options, schema) is None:
            return await off_loop(self.plan, request, options, schema)
        return self.plan(request, options, schema)


def find_route(router: Router, name: str, frame: RequestFrame | None) -> ModelRoute:
    """Return the route for this name, looked up once for the requests of a frame; raises `UnknownModelError`."""
    if frame is None:
        return ModelRoute(router, name)
    key = ("route", name)
    cached = frame.find(key)
    if isinstance(cached, ModelRoute) and cached.router is router:
        return cached
    route = ModelRoute(router, name)
    if isinstance(route.provider, HttpProvider):  # other routers may resolve names differently on every call
        frame.keep(key, route)
    return route


def plan_for(router: Router, request: ModelRequest, options: Options, schema: Schema[Any] | None = None) -> Plan:
    """Return the plan for a request without a route; see `ModelRoute.plan`."""
    return ModelRoute(router, request.model).plan(request, options, schema)


def _text_of(response_format: ResponseFormat | None) -> tuple[str, bytes] | None:
    """Return name and text of an immutable response format."""
    spec = None if response_format is None else response_format.json_schema
    if spec is None or spec.text is None:
        return None
    return (spec.name, spec.text)


@dataclass(frozen=True, slots=True)
class _CachedPlan:
    """A plan and the options it was built from; a call with different options builds a new one."""

    options: Options
    plan: Plan
    version: Version | None = None
    """The version of the provider it was built for."""


_PlanKey: TypeAlias = tuple[
    Schema[Any] | tuple[str, bytes], OutputStrategy, bool, BoundCodec | Capabilities, Guard | None
]
_PLANS = BoundedCache[_PlanKey, _CachedPlan]("plans", entries=128, max_bytes=32_000_000)
"""Plans by immutable response formats (a `Schema`, or the name and text of a cached format) and by the model's codec
key, which changes with every downgrade."""


def _depends_on_request_only(options: Options) -> bool:
    """Return whether a plan depends only on the request, options and capabilities: not on the router."""
    return not options.formatter


def _is_cacheable(request: ModelRequest, options: Options) -> bool:
    """Whether a plan depends only on response format, options and capabilities: not on tools, guard or router."""
    if request.tools or not _depends_on_request_only(options):
        return False
    return not request.extra or Guard.of(request.extra, options.guard) is options.guard


def _planned(
    route: ModelRoute,
    request: ModelRequest,
    options: Options,
    schema: Schema[Any] | None,
    capabilities: Capabilities,
) -> Plan:
    provider_guard = _provider_guard(route.provider)
    response_format = request.response_format
    strategy = OutputStrategy.AUTO if response_format is None else response_format.strategy
    chosen, stronger, wording = _channel(capabilities, strategy, options)
    has_own_output = any(tool.name == RESERVED_TOOL for tool in request.tools)
    if has_own_output and response_format is not None:
        if chosen is OutputStrategy.TOOL:
            refuse_reserved(request)
        stronger = tuple(each for each in stronger if each is not OutputStrategy.TOOL)
    if response_format is not None and wraps_root(capabilities, request):
        wording = dataclasses.replace(wording, wraps_root=True)
    standard = schema or wanted_schema(request)
    return Plan(
        schema=standard,
        strategy=chosen,
        stronger=stronger,
        wording=wording,
        tools=enforced_tools(request, options),
        must_call=requires_call(request, options),
        answer_tool=None if has_own_output else RESERVED_TOOL,
        calls=bool(request.tools),
        loads_tools=any(tool.loads_tools for tool in request.tools),
        formatter=_formatter(route, options),
        guard=Guard.of(request.extra, _default_guard(options, provider_guard)),
        guarded_decoding=provider_guard is not None,
        heavy=is_heavy(request),
        split=_split_plan(route, request, options),
        **Plan.shared(options),
    )


def _split_plan(route: ModelRoute, request: ModelRequest, options: Options) -> SplitPlan | None:
    """Plan how a wide schema is requested in parts; None if the caller wants features of one whole answer."""
    is_one_answer = bool(request.tools) or options.on_failure == "raw" or Guard.of(request.extra, options.guard).watches
    if options.split == "never" or is_one_answer or not isinstance(route.provider, HttpProvider):
        return None
    return split_plan(
        request.replace(model=route.model), options, route.provider, partial(_plan_part, route, request.model)
    )


def _plan_part(route: ModelRoute, name: str, request: ModelRequest, options: Options) -> Plan:
    return route.plan(request.replace(model=name), options)


def _provider_guard(provider: Provider) -> Guard | None:
    """Return the guards that a provider was created with; None if its decoding cannot be guarded."""
    guard: Guard | None = getattr(provider, "guard", None)
    return guard


def _default_guard(options: Options, provider_guard: Guard | None) -> Guard:
    """Return the guards of a call that sets none: those of its options, else those of its provider."""
    if provider_guard is None or options.guard != Guard():
        return options.guard
    return provider_guard


def _check_price(route: ModelRoute, options: Options) -> None:
    """Raise `ConfigError` if money is limited and the model's price is unknown: the limit would have no effect."""
    name = f"{route.provider.name}/{route.model}"
    if not is_known(route.price(options.prices)):
        raise ConfigError(
            f"There is a budget of money and no price for {name}",
            where="enforcement.max_cost",
            hint=f'Add one to `prices`; a model that costs nothing has `{{"{name}": Price(0, 0)}}`.',
        )


def price_list(provider: Provider) -> str:
    """Return the provider's id in the price list that ships with slipform; empty if it is not listed."""
    listed: str = getattr(provider, "price_list", "")
    return listed


def named_price(prices: Mapping[str, Price], router: Router, name: str) -> AnyPrice | None:
    """Return the price of the model `provider/model` of a router."""
    provider = router.providers.get(name.partition("/")[0])
    return find_price(prices, name, "" if provider is None else price_list(provider))


def model_price(prices: Mapping[str, Price], provider: Provider, model: str) -> AnyPrice | None:
    """Return the price of a provider's model: from these prices, else from the list that ships with slipform."""
    return find_price(prices, f"{provider.name}/{model}", getattr(provider, "price_list", ""))


def is_enforced(request: ModelRequest, *, tools: bool) -> bool:
    """Return whether the answer has a schema; `tools` says whether the arguments of tool calls are enforced."""
    return request.response_format is not None or request.json_mode or (tools and bool(request.tools))


def wanted_schema(request: ModelRequest) -> Schema[Any] | None:
    """Return the schema of the answer's text: the requested one, any object in JSON mode, or None."""
    if request.response_format is not None:
        return cached_schema(request.response_format.json_schema)
    return _any_object() if request.json_mode else None


@lru_cache(maxsize=1)
def _any_object() -> Schema[Any]:
    return Schema("object", {"type": "object"})


def enforced_tools(request: ModelRequest, options: Options) -> dict[str, Schema[Any]]:
    """Return the schema of each tool's arguments; the types and validators of Python functions count, too."""
    if options.tools != "enforce":
        return {}
    schemas = {
        tool.name: Schema(tool.name, tool.parameters) if tool.signature is None else tool.signature.arguments
        for tool in request.tools
    }
    if len(schemas) < len(request.tools):  # two namespaces may have tools of one name: a call may belong to either
        counts = Counter(tool.name for tool in request.tools)
        schemas |= {name: Schema(name, {"type": "object"}) for name, count in counts.items() if count > 1}
    return schemas


def requires_call(request: ModelRequest, options: Options) -> tuple[str, ...]:
    """Return the names of the tools of which the model must call one; empty if it need not call any.

    Also empty if calls are not enforced: then an answer without one is not a failure.
    """
    if options.tools != "enforce":
        return ()
    choice = request.tool_choice
    names = tuple(tool.name for tool in request.tools)
    if isinstance(choice, NamedTool):
        return tuple(name for name in names if name == choice.name)
    if choice == "required":
        return names
    return ()


def _channel(
    capabilities: Capabilities, strategy: OutputStrategy, options: Options
) -> tuple[OutputStrategy, tuple[OutputStrategy, ...], Wording]:
    """Return the strategy, the stronger strategies this model supports, and the wording of the prompt."""
    chosen = capabilities.auto_strategy if strategy is OutputStrategy.AUTO else strategy
    has = {OutputStrategy.NATIVE: capabilities.native, OutputStrategy.TOOL: capabilities.forced_tool}
    stronger = tuple(each for each in _STRENGTH[_STRENGTH.index(chosen) + 1 :] if has[each])
    quirks = capabilities.quirks
    wording = Wording(
        "list_keys" in quirks and not options.schema_shown,
        options.max_schema_chars,
        options.descriptions,
        "schema_in_prompt" in quirks,
        options.schema_shown,
        prefills=capabilities.takes_prefill and not options.guard.watches,
    )
    return chosen, stronger, wording


def _formatter(route: ModelRoute, options: Options) -> Formatter | None:
    named = _embedded(route) if options.formatter == "auto" else options.formatter
    if named is None:
        return None
    provider, upstream = route.router.resolve(named)
    shows = dataclasses.replace(options, schema_shown=False)  # the formatter does not receive the caller's messages
    strategy, _, wording = _channel(provider.capabilities(upstream), OutputStrategy.AUTO, shows)
    return Formatter(named, strategy, wording)


def _embedded(route: ModelRoute) -> str | None:
    """Return the embedded model if its weights are present and it is not the model of this route."""
    try:
        provider, _ = route.router.resolve(LOCAL)
    except SlipformError:
        return None
    if provider is not route.provider and provider.name == LOCAL and local_models().is_installed():
        return LOCAL
    return None
