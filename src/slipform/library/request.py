"""Build a `ModelRequest` and `Options` from the arguments of a library call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from slipform.bounded import BoundedCache
from slipform.enforce.judging import Validator
from slipform.engine.setup import Options, default_router, library_options
from slipform.ir import Message, ModelRequest, Sampling
from slipform.library.partial_types import ANY, Kind, kind_of
from slipform.providers.router import Router
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat, Schema

if TYPE_CHECKING:
    from slipform.config import Settings

Prompt: TypeAlias = str | Sequence[Message]
RawSchema: TypeAlias = Mapping[str, Any] | JsonSchemaSpec | str
Models: TypeAlias = str | Sequence[str] | None
Config: TypeAlias = "Settings | Path | str"


class TextOverrides(TypedDict, total=False):
    """Keyword arguments of a call for plain text; what is left out, or None, comes from the client."""

    model: str | Sequence[str] | None
    """`provider/model`, or an alias; several are tried in their order."""
    system: str | None
    """System message before the prompt."""
    max_tokens: int | None
    temperature: float | None
    seed: int | None
    timeout: float | None
    """Seconds for the whole call, all attempts included."""


class Overrides(TextOverrides, total=False):
    """Keyword arguments of a call for an answer of some shape."""

    max_attempts: int | None
    """Model calls in all, retries included."""
    strategy: OutputStrategy | Literal["auto", "native", "tool", "prompted"] | None
    validators: Sequence[Validator] | None
    """Further checks of a valid value: each returns a complaint, or None."""
    options: Options | None
    """All options at once, in place of the client's; the arguments above override them."""


_TEXT_NAMES = frozenset(TextOverrides.__annotations__)
_NAMES = frozenset(Overrides.__annotations__) | _TEXT_NAMES


def request_for(
    schema: Schema[Any], prompt: Prompt, model: Models, options: Options, overrides: Overrides
) -> tuple[ModelRequest, Options]:
    """Return a request for an answer of this shape, and the options of its enforcement.

    >>> request, options = request_for(Schema.of(int), "How many?", "local", Options(), {"max_attempts": 2})
    >>> request.model, options.budget.attempts
    ('local', 2)
    """
    if not overrides:
        return ModelRequest(first_of(model), messages_of(prompt), _response_format(schema)), options
    _refuse_unknown(overrides, _NAMES)
    response_format = _response_format(schema)
    if (strategy := overrides.get("strategy")) is not None:
        response_format = response_format.with_strategy(OutputStrategy(strategy))
    request = _base_request(prompt, model, overrides).replace(response_format=response_format)
    return request, _merge_options(overrides.get("options") or options, overrides)


def text_request(prompt: Prompt, model: Models, overrides: TextOverrides) -> ModelRequest:
    """Return a request for plain text."""
    if not overrides:
        return ModelRequest(first_of(model), messages_of(prompt))
    _refuse_unknown(overrides, _TEXT_NAMES)
    return _base_request(prompt, model, overrides).replace(timeout=overrides.get("timeout"))


def _base_request(prompt: Prompt, model: Models, overrides: TextOverrides) -> ModelRequest:
    messages = messages_of(prompt)
    if system := overrides.get("system"):
        messages = (Message.system(system), *messages)
    sampling = Sampling(temperature=overrides.get("temperature"), seed=overrides.get("seed"))
    return ModelRequest(
        first_of(models_of(model, overrides)), messages, sampling=sampling, max_tokens=overrides.get("max_tokens")
    )


def models_of(model: Models, overrides: TextOverrides) -> str | Sequence[str]:
    """Return the models of a call: its own, else the client's; an empty name stands for the default."""
    return overrides.get("model") or model or ""


def first_of(models: Models) -> str:
    """Return the model that is tried first.

    >>> first_of(["openai/gpt-6-luna", "local"])
    'openai/gpt-6-luna'
    """
    return models if isinstance(models, str) else models[0] if models else ""


def _merge_options(options: Options, overrides: Overrides) -> Options:
    attempts, seconds = overrides.get("max_attempts"), overrides.get("timeout")
    budget = options.budget
    if attempts is not None:
        if attempts < 1:
            raise ValueError("max_attempts must be at least 1")
        budget = dataclasses.replace(budget, attempts=attempts)
    if seconds is not None:
        budget = dataclasses.replace(budget, seconds=seconds)
    validators = (*options.validators, *(overrides.get("validators") or ()))
    return dataclasses.replace(options, budget=budget, validators=validators)


def _refuse_unknown(overrides: Mapping[str, Any], allowed: frozenset[str]) -> None:
    for name in overrides:
        if name not in allowed:
            raise TypeError(f"There is no argument {name!r}; there are {', '.join(sorted(allowed))}")


def messages_of(prompt: Prompt) -> tuple[Message, ...]:
    """Return a prompt as messages: a string is one user message.

    >>> messages_of("Hello")[0].role
    'user'
    """
    return (Message.user(prompt),) if isinstance(prompt, str) else tuple(prompt)


def shape_kind(shape: Any) -> Kind:
    """Return the parts of a shape; those of a JSON Schema or a ready `Schema` are plain JSON."""
    return ANY if isinstance(shape, Schema | Mapping | JsonSchemaSpec | str) else kind_of(shape)


def set_up(config: Config | None, options: Options | None, router: Router | None) -> tuple[Router, Options]:
    """Return a client's providers and options: those passed in, else those of the settings."""
    if router is not None and config is None:
        return router, options or Options()
    settings = _settings(config)
    return router or default_router(settings), options or library_options(settings)


def _settings(config: Config | None) -> Settings:
    from slipform.config import Settings, load_settings

    return config if isinstance(config, Settings) else load_settings(None if config is None else Path(config))


def _response_format(schema: Schema[Any]) -> ResponseFormat:
    response_format = _FORMATS.get(schema)
    if response_format is None:
        response_format = ResponseFormat.strict(schema.spec)
        _FORMATS.put(schema, response_format, schema.size)
    return response_format


_FORMATS = BoundedCache[Schema[Any], ResponseFormat]("response formats of types", entries=512, max_bytes=32_000_000)
