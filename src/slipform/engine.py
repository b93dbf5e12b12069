"""Router and enforcement, put together: a request → who answers it, and the plan that its answer is held to."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import orjson

from slipform.bounded import BoundedCache
from slipform.codecs.base import Capabilities
from slipform.enforce import Budget, Formatter, Guard, Outcome, Plan, Report, Steps, Switches, Wording
from slipform.enforce.judge import Validator
from slipform.enforce.loop import advance
from slipform.errors import ConfigError, SlipformError
from slipform.ir import ModelRequest, ModelResponse, NamedTool, Usage
from slipform.ir.request import is_heavy
from slipform.log_fields import pairs
from slipform.off_loop import off_loop
from slipform.prices import Price, cost_of, price_of
from slipform.providers import Provider
from slipform.providers.catalog import load_catalog
from slipform.providers.http import HttpProvider
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.connections import NO_PROXY, read_proxy, tls_context
from slipform.providers.network.transport import ProtocolError, Timeouts, Transport
from slipform.providers.retry import Retries
from slipform.providers.router import Router
from slipform.providers.throttle import throttled
from slipform.schema import OutputStrategy, ResponseFormat, Schema, is_large
from slipform.schema.kept import is_kept, schema_of
from slipform.tracing import is_tracing, traced

if TYPE_CHECKING:
    from slipform.config import ProviderSettings, Settings

LOCAL = "local"

_log = logging.getLogger("slipform.calls")
_STRENGTH = (OutputStrategy.PROMPTED, OutputStrategy.TOOL, OutputStrategy.NATIVE)


@dataclass(frozen=True, slots=True)
class Options:
    """How answers are enforced; a client has some, and a call may have others."""

    budget: Budget = field(default_factory=Budget)
    switches: Switches = field(default_factory=Switches)
    repair: bool = True
    validators: tuple[Validator, ...] = ()
    reask_scope: Literal["auto", "full", "parts"] = "auto"
    formatter: str | None = None
    """A model that re-shapes what the first one said, on the last attempt; `auto` is the embedded model, where it is
    installed and not the one that was asked."""
    tools: Literal["enforce", "pass"] = "enforce"
    max_schema_chars: int = 2000
    descriptions: bool = False
    on_failure: Literal["raise", "raw"] = "raise"
    guard: Guard = field(default_factory=Guard)
    """What is done about an answer while it is written; a request's `extra` may ask for more."""
    backoff_seconds: float = 0
    """The pause before an answer is asked for again; streams do not pause."""
    keep_text: bool = False
    prices: Mapping[str, Price] = field(default_factory=dict)
    """What models cost, by `provider/model`, in which `*` stands for any run of characters; the first that fits."""


def plan_for(router: Router, request: ModelRequest, options: Options, schema: Schema[Any] | None = None) -> Plan:
    """How the answer to this request is to be enforced, by what its model can do.

    `schema` is the request's own, where the caller has it: with a Python type behind it, whose validators count too.
    """
    provider, upstream = router.resolve(request.model)
    capabilities = provider.capabilities(upstream)
    wanted, local = request.response_format, provider.name == LOCAL
    if wanted is None or not (schema or is_kept(wanted.json_schema)) or not _keeps(request, options):
        return _planned(router, request, options, schema, capabilities, local=local)
    key = (id(wanted), id(options), id(schema))
    kept = _PLANS.get(key)
    if kept is None or not kept.is_for(wanted, options, schema, capabilities, local):
        made = _planned(router, request, options, schema, capabilities, local=local)
        kept = _Kept(wanted, options, schema, capabilities, local, made)
        size = _TIMES_TEXT * len(orjson.dumps(wanted.json_schema.schema, default=repr))
        _PLANS.put(key, kept, _LEAST + size)
    return kept.plan


@dataclass(frozen=True, slots=True)
class _Kept:
    """A plan, and all that it was made of: held here, so that no other object can have come to be at its address.

    Only shapes that nobody can change: a `Schema`, and what `schema.kept` has made.
    """

    wanted: ResponseFormat
    options: Options
    schema: Schema[Any] | None
    capabilities: Capabilities
    local: bool
    plan: Plan

    def is_for(
        self,
        wanted: ResponseFormat,
        options: Options,
        schema: Schema[Any] | None,
        capabilities: Capabilities,
        local: bool,
    ) -> bool:
        return (
            self.wanted is wanted
            and self.options is options
            and self.schema is schema
            and self.local is local
            and (self.capabilities is capabilities or self.capabilities == capabilities)
        )


_PLANS = BoundedCache[tuple[int, int, int], _Kept]("plans", entries=128, max_bytes=32_000_000)
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
        tools=held_tools(request, options),
        must_call=must_call(request, options),
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
        return schema_of(request.response_format.json_schema)
    return _any_object() if request.json_mode else None


@lru_cache(maxsize=1)
def _any_object() -> Schema[Any]:
    return Schema("object", {"type": "object"})


def held_tools(request: ModelRequest, options: Options) -> dict[str, Schema[Any]]:
    """What the arguments of each tool are held to."""
    return {tool.name: Schema(tool.name, tool.parameters) for tool in request.tools if options.tools == "enforce"}


def must_call(request: ModelRequest, options: Options) -> tuple[str, ...]:
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
    from slipform.providers.local.weights import DEFAULT, find, known

    return find(known(DEFAULT)) is not None


def options_of(settings: Settings) -> Options:
    """The enforcement that a configuration asks for."""
    given = settings.enforcement
    return Options(
        budget=Budget(given.max_attempts, given.max_seconds, given.max_tokens, given.max_cost, given.max_calls),
        switches=Switches(**given.patches.model_dump()),
        reask_scope=given.reask_scope,
        formatter=given.formatter,
        tools=given.tools,
        on_failure=given.on_failure,
        prices={name: Price(price.input, price.output) for name, price in settings.prices.items()},
    )


def library_options(settings: Settings) -> Options:
    """The same for calls from Python: answers are asked for once, unless the configuration says how often."""
    options = options_of(settings)
    if "max_attempts" in settings.enforcement.model_fields_set:
        return options
    return dataclasses.replace(options, budget=dataclasses.replace(options.budget, attempts=1))


def router_of(
    settings: Settings, environment: Mapping[str, str] | None = None, *, retries: Retries | None = None
) -> Router:
    """The providers of a configuration: the embedded model, those named, and those whose key is in the environment.

    `retries` says how their calls are repeated when the network or a vendor fails.
    """
    from slipform.providers.local import LocalProvider
    from slipform.providers.transformers import TransformersProvider

    found = os.environ if environment is None else environment
    if LOCAL in settings.providers:
        raise ConfigError("The provider name `local` is the embedded model's", where=f"providers.{LOCAL}")
    catalog = load_catalog({name: _row(given) for name, given in settings.providers.items()})
    local = LocalProvider()
    providers: dict[str, Provider] = {LOCAL: local, "transformers": TransformersProvider()}
    for name, vendor in catalog.vendors.items():
        given = settings.providers.get(name)
        if given is not None or any(found.get(key) for key in vendor.api_key_env):
            seconds = (given.timeout_seconds if given else None) or settings.runtime.timeout_seconds
            providers[name] = HttpProvider(
                vendor,
                timeouts=Timeouts(total=seconds),
                retries=retries,
                settings=given.settings if given else None,
                transport=_transport(name, given) if given else None,
            )
    aliases = {LOCAL: f"{LOCAL}/{local.models()[0]}", **settings.model_aliases}
    return Router(providers, aliases=aliases, default=settings.default_model)


def default_router(settings: Settings | None = None) -> Router:
    """The providers of these settings, or of the configuration that is found."""
    if settings is None:
        from slipform.config import load_settings

        settings = load_settings()
    return router_of(settings)


def _transport(name: str, given: ProviderSettings) -> Transport:
    """What sends a configured provider's requests."""
    tls = None
    if given.client_key is not None and given.client_certificate is None:
        raise ConfigError("There is no `client_certificate` for this key", where=f"providers.{name}.client_key")
    if given.ca_file is not None or given.client_certificate is not None:
        try:
            tls = tls_context(given.ca_file, given.client_certificate, given.client_key)
        except OSError as error:
            field = "ca_file" if given.client_certificate is None else "client_certificate"
            raise ConfigError(
                f"A certificate cannot be read: {error}",
                where=f"providers.{name}.{field}",
                hint="It must be a PEM file; a key that is not in the certificate's file goes to `client_key`.",
            ) from error
    if given.proxy not in (None, NO_PROXY):
        try:
            read_proxy(given.proxy)
        except ProtocolError as error:
            raise ConfigError(f"The proxy cannot be used: {error}", where=f"providers.{name}.proxy") from error
    sender = HttpTransport(tls=tls, proxy=given.proxy, max_answer_bytes=given.max_answer_bytes)
    return throttled(sender, given.max_concurrent)


def _row(given: ProviderSettings) -> dict[str, Any]:
    """A provider of the configuration as a row for the catalogue."""
    row = {
        "extends": given.kind,
        "base_url": given.base_url,
        "api_key_env": [given.api_key_env] if given.api_key_env else None,
        "headers": given.headers or None,
        "models": given.models or None,
    }
    return {name: value for name, value in row.items() if value is not None}


def is_told_of_calls() -> bool:
    """Whether somebody wants to be told of each call, by spans or by log lines."""
    return is_tracing() or _log.isEnabledFor(logging.INFO)


def logged(
    steps: Steps, request: ModelRequest, plan: Plan, *, streaming: bool = False, limit: float | None = None
) -> Steps:
    """The same steps, each within the time that is left, with a span per attempt and one log line for all of them.

    They say what was called and how it went; no prompt and no secret. `limit` is the time limit of one call, where
    whoever sends the requests keeps one: it is only told.
    """
    if plan.budget.seconds is not None:
        steps = _timed(steps, plan, plan.budget.seconds)
    if not is_told_of_calls():
        return steps
    if limit is not None:
        plan = dataclasses.replace(plan, budget=dataclasses.replace(plan.budget, seconds=limit))
    return _watched(steps, request, plan, streaming)


async def plan_async(router: Router, request: ModelRequest, options: Options) -> Plan:
    """`plan_for`, with large schemas compiled off the event loop."""
    given = (router, request, options)
    return await off_loop(plan_for, *given) if is_heavy(request) else plan_for(*given)


async def begin_async(steps: Steps, request: ModelRequest) -> ModelRequest:
    """What the steps of this request ask first; where its schemas are large, worded off the event loop."""
    return await off_loop(next, steps) if is_heavy(request) else next(steps)


async def advance_async(steps: Steps, response: ModelResponse, request: ModelRequest) -> ModelRequest | Outcome:
    """`advance`, with a large answer, and any answer to large schemas, judged off the event loop."""
    if is_large(len(response.text)) or is_heavy(request):
        return await off_loop(advance, steps, response)
    return advance(steps, response)


def _timed(steps: Steps, plan: Plan, seconds: float) -> Steps:
    """The same steps, with what is left of the time written on each request."""
    end = plan.clock() + seconds
    try:
        asked = next(steps)
        while True:
            try:
                response = yield asked.replace(timeout=max(end - plan.clock(), 0.001))
            except BaseException as error:  # noqa: BLE001 — whatever it is, it is the steps' to answer
                asked = steps.throw(error)
            else:
                asked = steps.send(response)
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome


def _watched(steps: Steps, request: ModelRequest, plan: Plan, streaming: bool) -> Steps:
    try:
        outcome = yield from traced(steps, request, plan.strategy.value, streaming=streaming)
    except SlipformError as error:
        _record_call(request, plan, error.report, streaming, error.code)
        raise
    except BaseException:  # cancelled, or given up by who reads the stream
        _record_call(request, plan, None, streaming, "cancelled")
        raise
    _record_call(request, plan, outcome.report, streaming, "ok")
    return outcome


def _record_call(request: ModelRequest, plan: Plan, report: object, streaming: bool, outcome: str) -> None:
    if not _log.isEnabledFor(logging.INFO):
        return
    attempts = report.attempts if isinstance(report, Report) else ()
    usage = report.usage if isinstance(report, Report) else Usage()
    provider, _, model = request.model.partition("/")
    fields = {
        "provider": provider,
        "model": model,
        "require_json": plan.schema is not None,
        "use_response_schema": request.response_format is not None,
        "strategy": plan.strategy.value,
        "streaming": streaming,
        "timeout": plan.budget.seconds,
        "latency": round(sum(attempt.seconds or 0 for attempt in attempts), 3),
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "attempts": len(attempts),
        "repair_attempted": "yes" if len(attempts) > 1 else "no",
        "outcome": outcome,
    }
    _log.info("call %s", pairs(fields), extra={"slipform": fields})
