"""Resolve the model that answers a call, once for all attempts, and plan what its answers must satisfy."""

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
    """Where one call goes: who answers for the name it asks for. Made when the call comes in, and carried along."""

    __slots__ = ("full_name", "model", "name", "price_list_id", "provider", "router")

    def __init__(self, router: Router, name: str) -> None:
        """Raises `UnknownModelError`; an empty name is the default model."""
        self.router: Final = router
        self.name: Final = name
        """As it was asked for; the requests of the call carry it."""
        self.provider, self.model = router.resolve(name)
        self.full_name: Final = f"{self.provider.name}/{self.model}"
        self.price_list_id: Final = price_list(self.provider)
        """The provider's id in the list of prices; empty where that has none."""

    @property
    def blocking(self) -> Model:
        """What sends its requests, for `engine.drive`."""
        return Model(self.complete, self.stream)

    @property
    def awaited(self) -> AsyncModel:
        """The same for event loops."""
        return AsyncModel(self.complete_async, self.batches_async)

    def complete(self, request: ModelRequest) -> ModelResponse:
        """A whole answer, blocking."""
        provider, request = self._addressed(request)
        return provider.complete(request)

    def stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        """An answer piece by piece, blocking."""
        provider, request = self._addressed(request)
        return provider.stream(request)

    def complete_async(self, request: ModelRequest) -> Coroutine[Any, Any, ModelResponse]:
        """A whole answer."""
        provider = self.provider
        if request.model == self.name and type(provider) is HttpProvider:
            self.count_call(request.calls)
            return provider.complete_async(request, self.model)
        provider, request = self._addressed(request)
        return provider.complete_async(request)

    def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """An answer piece by piece."""
        provider, request = self._addressed(request)
        return provider.stream_async(request)

    def batches_async(self, request: ModelRequest, sink: ChunkSink) -> AsyncGenerator[Sequence[CompletionChunk], None]:
        """An answer into a sink, which gets the chunks that arrived together as soon as they have."""
        provider, request = self._addressed(request)
        return provider.batches_async(request, sink)

    def _addressed(self, request: ModelRequest) -> tuple[Provider, ModelRequest]:
        """Who is sent this request, under the provider's own name for the model; counted as a call."""
        route = self if request.model == self.name else ModelRoute(self.router, request.model)  # a formatter's
        route.count_call(request.calls)
        return route.provider, request.replace(model=route.model)

    def count_call(self, calls: CallCount | None) -> None:
        """Count a call to the model."""
        if calls is not None:
            calls.model = self.full_name
            calls.price_list = self.price_list_id
            calls.add(self.full_name)

    def price(self, prices: Mapping[str, Price]) -> AnyPrice | None:
        """What its model costs: by these prices, else by the list that ships with slipform."""
        return find_price(prices, self.full_name, self.price_list_id)

    def plan(self, request: ModelRequest, options: Options, schema: Schema[Any] | None = None) -> Plan:
        """How the answer to a request for this model is to be enforced, by what the model can do.

        `schema` is the request's own, where the caller has it: with a Python type behind it, whose validators count
        too.
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
        if request.frame is not None and schema is None and version is not None and _hangs_on_request(options):
            request.frame.keep((self, options.keep_text), _CachedPlan(options, plan, version))
        return plan

    def _uncached_plan(self, request: ModelRequest, options: Options, schema: Schema[Any] | None) -> Plan:
        response_format = request.response_format
        provider = self.provider
        shape = schema or _text_of(response_format)
        if response_format is None or shape is None or not _keeps(request, options):
            return _planned(self, request, options, schema, self._capabilities(request, schema))
        speaker = self._speaker(response_format)
        key = (shape, response_format.strategy, response_format.strict, speaker, _provider_guard(provider))
        cached = _PLANS.get(key)
        if cached is None or (cached.options is not options and cached.options != options):
            plan = _planned(self, request, options, schema, self._capabilities(request, schema))
            cached = _CachedPlan(options, plan)
            _PLANS.put(key, cached, estimated_bytes(json_text(response_format.json_schema.schema)))
        return cached.plan

    def find_plan(self, request: ModelRequest, options: Options, schema: Schema[Any] | None = None) -> Plan | None:
        """The plan of an earlier request of the same frame, while the provider has not changed."""
        if request.frame is None or schema is not None or options.evidence is not None:
            return None
        cached = request.frame.find((self, options.keep_text))
        if not isinstance(cached, _CachedPlan) or cached.options is not options:
            return None
        return cached.plan if cached.version == getattr(self.provider, "version", None) else None

    @property
    def _version(self) -> Version | None:
        """What changes when plans are to be rebuilt; None where that is unknown."""
        return getattr(self.provider, "version", None)

    def _speaker(self, response_format: ResponseFormat | None) -> BoundCodec | Capabilities:
        """Return the key of a model's plans, which changes with every downgrade."""
        if response_format is None or not isinstance(self.provider, HttpProvider):
            return self.provider.capabilities(self.model)
        return self.provider.codec_for(self.model, response_format)

    def _capabilities(self, request: ModelRequest, schema: Schema[Any] | None) -> Capabilities:
        if request.response_format is None or not isinstance(self.provider, HttpProvider):
            return self.provider.capabilities(self.model)
        if schema is None:
            wanted_schema(request)  # refuses what is not a schema, before anything is made of it
        return self.provider.capabilities_for(request.replace(model=self.model))

    async def plan_async(self, request: ModelRequest, options: Options, schema: Schema[Any] | None = None) -> Plan:
        """`plan`, with large schemas compiled off the event loop."""
        if is_heavy(request) and self.find_plan(request, options, schema) is None:
            return await off_loop(self.plan, request, options, schema)
        return self.plan(request, options, schema)


def find_route(router: Router, name: str, frame: RequestFrame | None) -> ModelRoute:
    """Where requests for this name go, looked up once for those of a frame; raises `UnknownModelError`."""
    if frame is None:
        return ModelRoute(router, name)
    key = ("route", name)
    cached = frame.find(key)
    if isinstance(cached, ModelRoute) and cached.router is router:
        return cached
    route = ModelRoute(router, name)
    if isinstance(route.provider, HttpProvider):  # others may serve other models from one call to the next
        frame.keep(key, route)
    return route


def plan_for(router: Router, request: ModelRequest, options: Options, schema: Schema[Any] | None = None) -> Plan:
    """The plan for a request that no route was made for; see `ModelRoute.plan`."""
    return ModelRoute(router, request.model).plan(request, options, schema)


def _text_of(response_format: ResponseFormat | None) -> tuple[str, bytes] | None:
    """Name and text of a shape that cannot change."""
    spec = None if response_format is None else response_format.json_schema
    if spec is None or spec.text is None:
        return None
    return (spec.name, spec.text)


@dataclass(frozen=True, slots=True)
class _CachedPlan:
    """A plan, and the options it was made of; a call with its own options builds a new one."""

    options: Options
    plan: Plan
    version: Version | None = None
    """Of the provider it was made for."""


_PlanKey: TypeAlias = tuple[
    Schema[Any] | tuple[str, bytes], OutputStrategy, bool, BoundCodec | Capabilities, Guard | None
]
_PLANS = BoundedCache[_PlanKey, _CachedPlan]("plans", entries=128, max_bytes=32_000_000)
"""By shapes that cannot change (a `Schema`, or the name and text of a cached format), and by the model and how it
is asked: an endpoint has one codec for what a model can do after all its downgrades."""


def _hangs_on_request(options: Options) -> bool:
    """Whether a plan hangs on nothing but the request, options and capabilities: not on the router."""
    return not options.formatter


def _keeps(request: ModelRequest, options: Options) -> bool:
    """Whether the plan hangs on nothing but shape, options and capabilities: on no tools, no guard, no router."""
    if request.tools or not _hangs_on_request(options):
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
    """Plan how a wide schema is asked for in parts; None where the caller wants what belongs to one whole answer."""
    is_one_answer = bool(request.tools) or options.on_failure == "raw" or Guard.of(request.extra, options.guard).watches
    if options.split == "never" or is_one_answer or not isinstance(route.provider, HttpProvider):
        return None
    return split_plan(
        request.replace(model=route.model), options, route.provider, partial(_plan_part, route, request.model)
    )


def _plan_part(route: ModelRoute, name: str, request: ModelRequest, options: Options) -> Plan:
    return route.plan(request.replace(model=name), options)


def _provider_guard(provider: Provider) -> Guard | None:
    """Return the guards that a provider was made with; None for one whose decoding cannot be guarded."""
    guard: Guard | None = getattr(provider, "guard", None)
    return guard


def _default_guard(options: Options, provider_guard: Guard | None) -> Guard:
    """Return the guards of a call that sets none itself: those of its options, else those of its provider."""
    if provider_guard is None or options.guard != Guard():
        return options.guard
    return provider_guard


def _check_price(route: ModelRoute, options: Options) -> None:
    """Raise `ConfigError` where money is bounded and the model's price is not known: it would not be bounded."""
    name = f"{route.provider.name}/{route.model}"
    if not is_known(route.price(options.prices)):
        raise ConfigError(
            f"There is a budget of money and no price for {name}",
            where="enforcement.max_cost",
            hint=f'Add one to `prices`; a model that costs nothing has `{{"{name}": Price(0, 0)}}`.',
        )


def price_list(provider: Provider) -> str:
    """Return the provider's id in the list of prices that ships with slipform; empty where that has none."""
    listed: str = getattr(provider, "price_list", "")
    return listed


def named_price(prices: Mapping[str, Price], router: Router, name: str) -> AnyPrice | None:
    """Return what the model `provider/model` of a router costs."""
    provider = router.providers.get(name.partition("/")[0])
    return find_price(prices, name, "" if provider is None else price_list(provider))


def model_price(prices: Mapping[str, Price], provider: Provider, model: str) -> AnyPrice | None:
    """Return what a model of a provider costs: by these prices, else by the list that ships with slipform."""
    return find_price(prices, f"{provider.name}/{model}", getattr(provider, "price_list", ""))


def is_enforced(request: ModelRequest, *, tools: bool) -> bool:
    """Whether the answer has a schema; `tools` says whether the arguments of tool calls are."""
    return request.response_format is not None or request.json_mode or (tools and bool(request.tools))


def wanted_schema(request: ModelRequest) -> Schema[Any] | None:
    """What the text of the answer is validated against: the requested schema, any object in JSON mode, or nothing."""
    if request.response_format is not None:
        return cached_schema(request.response_format.json_schema)
    return _any_object() if request.json_mode else None


@lru_cache(maxsize=1)
def _any_object() -> Schema[Any]:
    return Schema("object", {"type": "object"})


def enforced_tools(request: ModelRequest, options: Options) -> dict[str, Schema[Any]]:
    """What each tool's arguments are validated against; a Python function's types and their validators count too."""
    if options.tools != "enforce":
        return {}
    schemas = {
        tool.name: Schema(tool.name, tool.parameters) if tool.signature is None else tool.signature.arguments
        for tool in request.tools
    }
    if len(schemas) < len(request.tools):  # two namespaces may have tools of one name: a call can be of either
        counts = Counter(tool.name for tool in request.tools)
        schemas |= {name: Schema(name, {"type": "object"}) for name, count in counts.items() if count > 1}
    return schemas


def requires_call(request: ModelRequest, options: Options) -> tuple[str, ...]:
    """The names of the tools of which the model must call one; empty where it may answer without a call.

    Empty also where calls are not enforced: an answer without one is not a failure then.
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
    """The strategy, the stronger ones this model also has, and how the prompt is worded."""
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
    shows = dataclasses.replace(options, schema_shown=False)  # the caller's messages are not what it is sent
    strategy, _, wording = _channel(provider.capabilities(upstream), OutputStrategy.AUTO, shows)
    return Formatter(named, strategy, wording)


def _embedded(route: ModelRoute) -> str | None:
    """The embedded model, where its weights are here already and another model is asked."""
    try:
        provider, _ = route.router.resolve(LOCAL)
    except SlipformError:
        return None
    if provider is not route.provider and provider.name == LOCAL and local_models().is_installed():
        return LOCAL
    return None
