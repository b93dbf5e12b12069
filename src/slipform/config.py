"""`slipform.yaml` → typed settings; every mistake is named with its file and line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from slipform.errors import ConfigError

FILE_NAME = "slipform.yaml"

Positive: TypeAlias = Annotated[float, Field(gt=0)]
Count: TypeAlias = Annotated[int, Field(ge=0)]


class _Block(BaseModel):
    """Names are snake_case; camelCase is taken too. An unknown name is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, strict=True)


class Output(_Block):
    """What the answers must be."""

    require_json: bool = False
    """The master switch: every answer is JSON or an error. Recommended for structured work."""
    use_response_schema: bool = False
    """Also hold answers to a schema, where one is named."""
    response_mime_type: str = "application/json"
    """A hint some providers take."""


class Runtime(_Block):
    """How calls are made."""

    streaming: bool = False
    timeout_seconds: Positive = 120


class Retries(_Block):
    """What is done about answers that do not fit."""

    attempts: Count = 1
    """Repair calls after the first; `n` means `n + 1` calls in all."""
    backoff_seconds: Annotated[float, Field(ge=0)] = 2


class ProviderSettings(_Block):
    """One provider: a name of the catalogue, or any endpoint of a known kind."""

    kind: str | None = None
    """The catalogue's row it follows; the provider's own name by default."""
    base_url: str | None = None
    api_key_env: str | None = None
    headers: dict[str, str] = {}
    models: list[str] = []
    """The models it serves; any name goes when empty."""
    settings: dict[str, str] = {}
    """What the base URL needs to know: resource, region, project."""
    max_concurrent: Annotated[int, Field(ge=1)] | None = None
    """Calls to it at the same time; the next one waits."""
    timeout_seconds: Positive | None = None
    """For one call; `runtime.timeout_seconds` when not given."""


class Price(_Block):
    """What a model costs, for a million tokens, in the currency you think in."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]


class Patches(_Block):
    """Which mechanical edits may make a value valid; see the guide."""

    coerce: bool = True
    drop_extra: bool = True
    rename_keys: bool = True
    units: bool = False
    wrap_scalars: bool = False
    fill_defaults: bool = False


class Enforcement(_Block):
    """How answers are made to fit on the proxy."""

    max_attempts: Annotated[int, Field(ge=1)] = 3
    max_seconds: Positive | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_cost: Positive | None = None
    """Needs `prices` for the models in use."""
    formatter: str | None = None
    """A model that re-shapes, on the last attempt, what the first one said."""
    reask_scope: Literal["auto", "full", "parts"] = "auto"
    tools: Literal["enforce", "pass"] = "enforce"
    on_failure: Literal["raise", "raw"] = "raise"
    stream_mode: Literal["auto", "live", "buffer", "reject"] = "auto"
    patches: Patches = Patches()


class ServerSettings(_Block):
    """Where the proxy listens and what it takes."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    max_body_bytes: Annotated[int, Field(ge=1024)] = 8 * 1024 * 1024
    body_seconds: Positive = 30
    """How long a client may take to send its request."""
    request_seconds: Positive = 600
    """How long one request may take in all."""
    drain_seconds: Positive = 30
    """How long requests under way may go on after a stop was asked for."""
    notice_seconds: Annotated[float, Field(ge=0)] = 0
    """How long new requests are still taken after that, with /readyz saying 503: time for a balancer to notice."""
    max_concurrent: Annotated[int, Field(ge=1)] = 1000
    """Requests at the same time; the next one is told to come back (503)."""
    cors_origins: list[str] = []
    """Web pages of these origins may call; none by default."""
    keys_file: str | None = None
    """Callers' API keys, hashed; `slipform keys add` writes it. Anybody may call when there is none."""
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    """For each key that has no limit of its own, or for each caller's address without keys."""
    log: Literal["text", "json", "off"] = "text"
    debug_traces: bool = False
    """Also log what was asked and answered. It may be private: off by default."""


class Cache(_Block):
    """Whether valid answers are kept for the same question."""

    enabled: bool = False
    max_entries: Annotated[int, Field(ge=1)] = 1000
    ttl_seconds: Positive = 3600


class Redis(_Block):
    """Where several workers or machines share keys, rate limits, the cache and what was learnt of vendors."""

    url: str
    prefix: str = "slipform:"


class Settings(_Block):
    """All settings, with their defaults.

    >>> Settings().enforcement.max_attempts
    3
    """

    default_model: str = "local"
    model_aliases: dict[str, str | list[str]] = {}
    """Another name for a model; with a list, the next one is asked when one cannot answer."""
    schemas: str | None = None
    """A folder of named schemas."""
    prices: dict[str, Price] = {}
    """By `provider/model`; `*` stands for any run of characters."""
    providers: dict[str, ProviderSettings] = {}
    output: Output = Output()
    runtime: Runtime = Runtime()
    retries: Retries = Retries()
    enforcement: Enforcement = Enforcement()
    server: ServerSettings = ServerSettings()
    cache: Cache = Cache()
    redis: Redis | None = None


def load_settings(path: Path | None = None) -> Settings:
    """The settings of a file; of `$SLIPFORM_CONFIG` or `slipform.yaml` here when there is one; else the defaults."""
    chosen = path or Path(os.environ.get("SLIPFORM_CONFIG", FILE_NAME))
    if path is None and "SLIPFORM_CONFIG" not in os.environ and not chosen.is_file():
        return Settings()
    try:
        text = chosen.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"The config cannot be read: {reason}", where=str(chosen)) from error
    return read_settings(text, str(chosen))


def read_settings(text: str, name: str = FILE_NAME) -> Settings:
    """Settings from YAML text.

    >>> read_settings("enforcement: {maxAttempts: 5}").enforcement.max_attempts
    5
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"The config is not YAML: {error.problem}", where=f"{name}:{line}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"The config is not YAML: {error}", where=name) from error
    lines = dict(_lines(node, ()))
    if twice := _repeated(node, ()):
        path, line = twice
        raise ConfigError(f"`{_dotted(path)}` is set twice", where=f"{name}:{line}", hint="Keep one of them.")
    try:
        return Settings.model_validate({} if data is None else data)
    except ValidationError as error:
        raise _explained(error, lines, name) from None


def _explained(error: ValidationError, lines: Mapping[tuple[Any, ...], int], name: str) -> ConfigError:
    mistakes = []
    for found in error.errors(include_url=False):
        path = found["loc"]
        line = next((lines[path[:size]] for size in range(len(path), -1, -1) if path[:size] in lines), 1)
        said = "there is no such setting" if found["type"] == "extra_forbidden" else found["msg"]
        mistakes.append((line, f"{name}:{line}: `{_dotted(path) or 'the file'}`: {said}"))
    mistakes.sort()
    first = mistakes[0]
    listed = "; ".join(text for _, text in mistakes)
    plural = "a mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    return ConfigError(
        f"The config has {plural}: {listed}",
        hint="See docs/reference.md for all settings.",
        details={"file": name, "line": first[0], "mistakes": [text for _, text in mistakes]},
    )


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(str(step) for step in path)


def _lines(node: yaml.Node | None, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Where each part of the file stands, by its path."""
    if node is None:
        return
    if path == ():
        yield path, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*path, key.value), key.start_mark.line + 1
            yield from _lines(value, (*path, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for at, value in enumerate(node.value):
            yield (*path, at), value.start_mark.line + 1
            yield from _lines(value, (*path, at))


def _repeated(node: yaml.Node | None, path: tuple[Any, ...]) -> tuple[tuple[Any, ...], int] | None:
    """The first key that a mapping sets twice, which YAML readers let pass in silence."""
    if not isinstance(node, yaml.MappingNode):
        return None
    seen: set[str] = set()
    for key, value in node.value:
        if key.value in seen:
            return (*path, key.value), key.start_mark.line + 1
        seen.add(key.value)
        if twice := _repeated(value, (*path, key.value)):
            return twice
    return None
