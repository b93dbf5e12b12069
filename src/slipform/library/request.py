"""Build a conversation from the arguments of a library call: its request, models, options and tools."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypedDict, TypeVar
from weakref import WeakKeyDictionary

from slipform.enforce.options import Complaint, checked_validators, override
from slipform.engine.setup import Options, default_router, options_of
from slipform.errors import ConfigError
from slipform.ir import Message, ModelRequest, Sampling
from slipform.ir.evidence import Evidence
from slipform.ir.request import RequestFrame
from slipform.library.messages import Prompt, example_messages, messages_of
from slipform.library.partial import ANY, Kind, kind_of
from slipform.library.tool_loop import Approval, ConversationSpec, Toolbox, ToolLike
from slipform.providers.catalog import load_catalog
from slipform.providers.http import HttpProvider
from slipform.providers.network.transport import Transport
from slipform.providers.router import Router
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat, Schema

if TYPE_CHECKING:
    from slipform.config import Settings

T_contra = TypeVar("T_contra", contravariant=True)
RawSchema: TypeAlias = Mapping[str, Any] | JsonSchemaSpec | ResponseFormat | str
Models: TypeAlias = str | Sequence[str] | None
Config: TypeAlias = "Settings | Path | str"


class TextOverrides(TypedDict, total=False):
    """Keyword arguments of a call for plain text; omitted ones, and None, default to the client's."""

    model: str | Sequence[str] | None
    """`provider/model`, or an alias; of several, the first that can answer is used."""
    system: str | None
    """System message before the prompt."""
    examples: Sequence[tuple[Prompt, Any]] | None
    """Pairs of a prompt and its answer, shown to the model before the prompt."""
    max_tokens: int | None
    """The output tokens of one answer at most."""
    temperature: float | None
    """As the vendor defines it."""
    seed: int | None
    """As the vendor defines it."""
    timeout: float | None
    """Seconds for the whole call, including all attempts and steps."""
    tools: Sequence[ToolLike] | None
    """Functions or `Tool`s that the model may call; slipform runs them and returns their results to the model."""
    approve: Approval | None
    """Decides before each tool call whether to run it: returns True, False, or a text with the reason for refusing."""
    max_steps: int | None
    """The model's answers at most, including those that call tools; 10 by default."""


class Overrides(TextOverrides, Generic[T_contra], total=False):
    """Keyword arguments of a call for an answer of some shape."""

    max_attempts: int | None
    """Model calls at most, including retries, 3 by default; with tools, per step."""
    strategy: OutputStrategy | Literal["auto", "native", "tool", "prompted"] | None
    """How the model is asked for the shape; the best way it supports by default."""
    validators: Sequence[Callable[[T_contra], Complaint | Sequence[Complaint] | None]] | None
    """Additional checks of a valid answer; see `Validator`."""
    evidence: Evidence | None
    """The evidence to collect for each value of the answer: see `Result.evidence`."""
    options: Options | None
    """All options at once, in place of the client's; the other arguments override them."""


_TEXT_NAMES = frozenset(TextOverrides.__annotations__)
_NAMES = frozenset(Overrides.__annotations__)


class ClientDefaults(Protocol):
    """What the calls of one client have in common, unless their arguments override it."""

    model: Models
    options: Options
    frames: WeakKeyDictionary[Schema[Any], RequestFrame]
    """What is kept for the next call with the same schema and no further arguments."""


def build_conversation(
    client: ClientDefaults,
    schema: Schema[Any],
    prompt: Prompt,
    overrides: Overrides[Any],
    requested: ResponseFormat | None = None,
) -> ConversationSpec:
    """Return a conversation that ends in an answer of this shape; `requested` is the caller's own format, if any.

    `client` has the model and the options of calls that name none.
    """
    model = client.model
    options = client.options
    if requested is None:
        response_format = schema.response_format
    else:
        response_format = dataclasses.replace(requested, json_schema=schema.spec)
    if not overrides:
        frame = _frame_of(client, schema) if requested is None else None
        request = ModelRequest(first_of(model), messages_of(prompt), response_format, frame=frame)
        return ConversationSpec(request, model or "", options)
    _refuse_unknown(overrides, _NAMES)
    if (strategy := overrides.get("strategy")) is not None:
        response_format = response_format.with_strategy(OutputStrategy(strategy))
    request = _base_request(prompt, model, overrides, schema).replace(response_format=response_format)
    toolbox = _toolbox(overrides)
    merged = _merge_options(overrides.get("options") or options, overrides)
    return ConversationSpec(request, models_of(model, overrides), merged, toolbox)


def _frame_of(client: ClientDefaults, schema: Schema[Any]) -> RequestFrame:
    frame = client.frames.get(schema)
    if frame is None:
        frame = client.frames.setdefault(schema, RequestFrame())
    return frame


def build_text_conversation(
    prompt: Prompt, model: Models, options: Options, overrides: TextOverrides
) -> ConversationSpec:
    """Return a conversation that ends in plain text."""
    _refuse_unknown(overrides, _TEXT_NAMES)
    request = _base_request(prompt, model, overrides, None).replace(timeout=overrides.get("timeout"))
    changes = {"budget.seconds": overrides.get("timeout"), "validators": ()}
    text_options = override(options, changes)
    return ConversationSpec(request, models_of(model, overrides), text_options, _toolbox(overrides))


def _toolbox(overrides: TextOverrides) -> Toolbox:
    tools = overrides.get("tools")
    approve = overrides.get("approve")
    steps = overrides.get("max_steps")
    if tools is None:
        if approve is not None or steps is not None:
            raise TypeError("`approve` and `max_steps` are for calls with `tools`")
        return _NO_TOOLS
    return Toolbox.of(tools, approve, steps)


_NO_TOOLS = Toolbox()


def _base_request(prompt: Prompt, model: Models, overrides: TextOverrides, schema: Schema[Any] | None) -> ModelRequest:
    messages = messages_of(prompt)
    if examples := overrides.get("examples"):
        first = next((place for place, message in enumerate(messages) if message.role != "system"), 0)
        messages = (*messages[:first], *example_messages(examples, schema), *messages[first:])
    if system := overrides.get("system"):
        messages = (Message.system(system), *messages)
    sampling = Sampling(temperature=overrides.get("temperature"), seed=overrides.get("seed"))
    return ModelRequest(
        first_of(models_of(model, overrides)), messages, sampling=sampling, max_tokens=overrides.get("max_tokens")
    )


def models_of(model: Models, overrides: TextOverrides) -> str | Sequence[str]:
    """Return the models of a call: its own, else the client's; an empty name means the default."""
    models = overrides.get("model") or model or ""
    if not isinstance(models, str) and not (isinstance(models, list | tuple) and isinstance(models[0], str)):
        raise ConfigError(
            f"A model is a name or a list of names, not {models!r:.50}", hint="Name it as `provider/model`."
        )
    return models


def first_of(models: Models) -> str:
    """Return the model that is tried first.

    >>> first_of(["openai/gpt-6-luna", "local"])
    'openai/gpt-6-luna'
    """
    if isinstance(models, str):
        return models
    return models[0] if models else ""


def _merge_options(options: Options, overrides: Overrides[Any]) -> Options:
    attempts = overrides.get("max_attempts")
    if attempts is not None and attempts < 1:
        raise ValueError("max_attempts must be at least 1")
    more = overrides.get("validators")
    changes = {
        "budget.attempts": attempts,
        "budget.seconds": overrides.get("timeout"),
        "validators": None if more is None else (*options.validators, *checked_validators(more)),
        "evidence": overrides.get("evidence"),
    }
    return override(options, changes)


def _refuse_unknown(overrides: Mapping[str, Any], allowed: frozenset[str]) -> None:
    for name in overrides:
        if name not in allowed:
            raise TypeError(f"Unknown argument {name!r}; the arguments are {', '.join(sorted(allowed))}")


def shape_kind(shape: Any) -> Kind:
    """Return the parts of a shape; those of a JSON Schema or a ready `Schema` are plain JSON."""
    if isinstance(shape, Schema | Mapping | JsonSchemaSpec | ResponseFormat | str):
        return ANY
    return kind_of(shape)


def requested_format(shape: Any) -> ResponseFormat | None:
    """Return a shape that is a response format, with its strictness and strategy; None for any other."""
    if isinstance(shape, ResponseFormat):
        return shape
    return None


def set_up(
    model: Models,
    config: Config | None,
    options: Options | None,
    router: Router | None,
    base_url: str | None,
    api_key: str | None,
    http: Transport | None,
) -> tuple[Router, Options]:
    """Return a client's providers and options: those passed in, else those of the settings."""
    if base_url is not None or api_key is not None or http is not None:
        if router is not None or config is not None:
            raise ConfigError(
                "`base_url`, `api_key` and `http` are for a client of one endpoint, without `config` or `router`",
                hint="Put the endpoint into the settings, under `providers`.",
            )
        return _endpoint_router(model, base_url, api_key, http), options or Options()
    if router is not None and config is None:
        return router, options or Options()
    settings = _settings(config)
    return router or default_router(settings), options or options_of(settings)


def _endpoint_router(model: Models, base_url: str | None, api_key: str | None, http: Transport | None) -> Router:
    """Return a router with one provider: the vendor of the model's prefix, else a server that speaks OpenAI's API."""
    prefix, slash, _ = first_of(model).partition("/")
    vendor = None
    if slash and prefix in load_catalog().vendors:
        vendor = prefix
    if vendor is None and base_url is None:
        raise ConfigError(
            f"It is not clear whose key this is: {first_of(model)!r} names no vendor",
            hint="Name the model as `openai/gpt-6-luna`, or give `base_url`.",
        )
    name = vendor or "openai-compatible"
    provider = HttpProvider(name, base_url=base_url, api_key=api_key, transport=http)
    return Router({name: provider}, endpoint=name)


def _settings(config: Config | None) -> Settings:
    from slipform.config import Settings, load_settings

    if isinstance(config, Settings):
        return config
    return load_settings(None if config is None else Path(config))
