"""What callers give, as a request and options."""

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
    """What a call for plain words may have of its own; what it leaves out, or gives as None, is the client's."""

    model: str | Sequence[str] | None
    """`provider/model`, or an alias; of several, the next is asked when one cannot answer."""
    system: str | None
    """What the model is told before the prompt."""
    max_tokens: int | None
    temperature: float | None
    seed: int | None
    timeout: float | None
    """Seconds for the answer in all, with every attempt at it."""


class Overrides(TextOverrides, total=False):
    """What a call for an answer of some shape may have of its own."""

    max_attempts: int | None
    """Calls in all, when answers do not fit."""
    strategy: OutputStrategy | Literal["auto", "native", "tool", "prompted"] | None
    validators: Sequence[Validator] | None
    """Further checks of a valid value: each gives a complaint, or None."""
    options: Options | None
    """All options at once, in place of the client's; those above still come before them."""


_TEXT = frozenset(TextOverrides.__annotations__)
_ALL = frozenset(Overrides.__annotations__) | _TEXT


def request_for(
    schema: Schema[Any], prompt: Prompt, model: Models, options: Options, given: Overrides
) -> tuple[ModelRequest, Options]:
    """A request for an answer of this shape, and the options of its enforcement.

    >>> request, options = request_for(Schema.of(int), "How many?", "local", Options(), {"max_attempts": 2})
    >>> request.model, options.budget.attempts
    ('local', 2)
    """
    if not given:
        return ModelRequest(first_of(model), messages_of(prompt), _format(schema)), options
    _refuse_unknown(given, _ALL)
    wanted = _format(schema)
    if (strategy := given.get("strategy")) is not None:
        wanted = wanted.with_strategy(OutputStrategy(strategy))
    request = _said(prompt, model, given).replace(response_format=wanted)
    return request, _chosen(given.get("options") or options, given)


def text_request(prompt: Prompt, model: Models, given: TextOverrides) -> ModelRequest:
    """A request for plain words."""
    if not given:
        return ModelRequest(first_of(model), messages_of(prompt))
    _refuse_unknown(given, _TEXT)
    return _said(prompt, model, given).replace(timeout=given.get("timeout"))


def _said(prompt: Prompt, model: Models, given: TextOverrides) -> ModelRequest:
    messages = messages_of(prompt)
    if system := given.get("system"):
        messages = (Message.system(system), *messages)
    sampling = Sampling(temperature=given.get("temperature"), seed=given.get("seed"))
    return ModelRequest(
        first_of(models_of(model, given)), messages, sampling=sampling, max_tokens=given.get("max_tokens")
    )


def models_of(model: Models, given: TextOverrides) -> str | Sequence[str]:
    """The models of a call: its own, else the client's; an empty name stands for the default."""
    return given.get("model") or model or ""


def first_of(models: Models) -> str:
    """The model that is asked first.

    >>> first_of(["openai/gpt-6-luna", "local"])
    'openai/gpt-6-luna'
    """
    return models if isinstance(models, str) else models[0] if models else ""


def _chosen(options: Options, given: Overrides) -> Options:
    attempts, seconds = given.get("max_attempts"), given.get("timeout")
    budget = options.budget
    if attempts is not None:
        if attempts < 1:
            raise ValueError("max_attempts must be at least 1")
        budget = dataclasses.replace(budget, attempts=attempts)
    if seconds is not None:
        budget = dataclasses.replace(budget, seconds=seconds)
    validators = (*options.validators, *(given.get("validators") or ()))
    return dataclasses.replace(options, budget=budget, validators=validators)


def _refuse_unknown(given: Mapping[str, Any], known: frozenset[str]) -> None:
    for name in given:
        if name not in known:
            raise TypeError(f"There is no argument {name!r}; there are {', '.join(sorted(known))}")


def messages_of(prompt: Prompt) -> tuple[Message, ...]:
    """A prompt as messages: a text is what the user says.

    >>> messages_of("Hello")[0].role
    'user'
    """
    return (Message.user(prompt),) if isinstance(prompt, str) else tuple(prompt)


def shape_kind(shape: Any) -> Kind:
    """What the parts of a shape are; a JSON Schema, and a `Schema` made before, have plain JSON for parts."""
    return ANY if isinstance(shape, Schema | Mapping | JsonSchemaSpec | str) else kind_of(shape)


def set_up(config: Config | None, options: Options | None, router: Router | None) -> tuple[Router, Options]:
    """A client's providers and options: those given in code, else the settings'."""
    if router is not None and config is None:
        return router, options or Options()
    settings = _settings(config)
    return router or default_router(settings), options or library_options(settings)


def _settings(config: Config | None) -> Settings:
    from slipform.config import Settings, load_settings

    return config if isinstance(config, Settings) else load_settings(None if config is None else Path(config))


def _format(schema: Schema[Any]) -> ResponseFormat:
    made = _FORMATS.get(schema)
    if made is None:
        made = ResponseFormat.strict(schema.spec)
        _FORMATS.put(schema, made, schema.size)
    return made


_FORMATS = BoundedCache[Schema[Any], ResponseFormat]("response formats of types", entries=512, max_bytes=32_000_000)
