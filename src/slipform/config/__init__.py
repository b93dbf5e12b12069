"""What `slipform.yaml` says: the typed settings; `load_settings`, `read_settings`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel, to_snake

from slipform.config.load import _dotted, _explained, _lines, _repeated, filled, put, read_value, settings_in
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
    """Whether plain answers are streamed; answers that must be JSON never are."""
    timeout_seconds: Positive = 120
    """For one call with its transport retries."""


class RetrySettings(_Block):
    """What is done about answers that do not fit."""

    attempts: Count = 1
    """Repair calls after the first; `n` means `n + 1` calls in all."""
    backoff_seconds: Annotated[float, Field(ge=0)] = 2
    """The pause before such a call."""


class ProviderSettings(_Block):
    """One provider: a name of the catalogue, or any endpoint of a known kind."""

    kind: str | None = None
    """The catalogue's row it follows; the provider's own name by default."""
    base_url: str | None = None
    """Where it is called; the catalogue's address by default."""
    api_key_env: str | None = None
    """The environment variable that holds its key, never the key itself."""
    headers: dict[str, str] = {}
    """Sent with every call."""
    models: list[str] = []
    """The models it serves; any name goes when empty."""
    settings: dict[str, str] = {}
    """What the base URL needs to know: resource, region, project."""
    max_concurrent: Annotated[int, Field(ge=1)] | None = None
    """Calls to it at the same time; the next one waits."""
    timeout_seconds: Positive | None = None
    """For one call; `runtime.timeout_seconds` when not given."""
    max_answer_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """Larger answers, decompressed, are refused."""
    ca_file: str | None = None
    """A PEM file of the authorities to trust, instead of the system's."""
    client_certificate: str | None = None
    """A PEM file with a certificate to show to the provider."""
    client_key: str | None = None
    """The certificate's key, if it is in a file of its own."""
    proxy: str | None = None
    """An `http://` or `https://` proxy, or `none`; what the environment says when not given."""


class PriceSettings(_Block):
    """What a model costs, for a million tokens, in the currency you think in."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]


class Patches(_Block):
    """Which mechanical edits may make a value valid; see the guide."""

    coerce: bool = True
    """`"42"` becomes 42, and the like."""
    drop_extra: bool = True
    """Keys that the schema forbids go."""
    rename_keys: bool = True
    """`first_name` for `firstName`, when exactly one fits."""
    units: bool = False
    """`"12 kg"` becomes 12."""
    wrap_scalars: bool = False
    """`1` becomes `[1]` where an array is wanted."""
    fill_constants: bool = True
    """Fill in a missing key that can have one value only."""
    fill_defaults: bool = False
    """A missing key gets its schema's `default`."""


class Enforcement(_Block):
    """How answers are made to fit on the proxy."""

    max_attempts: Annotated[int, Field(ge=1)] = 3
    """Model calls for one answer, in all."""
    max_seconds: Positive | None = None
    """For all calls of one answer together."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """For all calls of one answer together."""
    max_cost: Positive | None = None
    """Needs `prices` for the models in use."""
    max_calls: Annotated[int, Field(ge=1)] = 24
    """Calls that one request may cost in all: over the models of a fallback list, their attempts and the retries of
    transport together, on top of the budgets of each."""
    formatter: str | None = None
    """A model that re-shapes, on the last attempt, what the first one said."""
    reask_scope: Literal["auto", "full", "parts"] = "auto"
    """Whether a wrong answer is asked for again whole, or only its wrong parts."""
    tools: Literal["enforce", "pass"] = "enforce"
    """Whether the arguments of tool calls are held to the tools' schemas."""
    on_failure: Literal["raise", "raw"] = "raise"
    """What becomes of an answer that cannot be made to fit: an error, or its text with a warning."""
    response_format_max_schema_chars: Annotated[int, Field(ge=100)] = 2000
    """Characters of a schema in the prompt; a longer one is shortened there, but answers are held to all of it."""
    schema_descriptions: bool = False
    """Whether a schema in the prompt keeps its descriptions."""
    stream_mode: Literal["auto", "live", "buffer", "reject"] = "auto"
    """How streamed answers with a schema leave: as they are written, or whole once they are valid."""
    patches: Patches = Patches()


class ServerSettings(_Block):
    """Where the proxy listens and what it takes."""

    host: str = "127.0.0.1"
    """The address to listen on; `0.0.0.0` lets other machines call."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """0 takes a free one."""
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    """Serving processes."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 8 * 1024 * 1024
    """Larger requests are refused."""
    max_schema_bytes: Annotated[int, Field(ge=1024, le=5_000_000)] = 500_000
    """Of the schemas of one request together: its response format and its tools."""
    max_schema_nodes: Annotated[int, Field(ge=100)] = 20_000
    """Values (objects, lists, words, numbers) in those schemas; a pattern counts as 20."""
    body_seconds: Positive = 30
    """How long a client may take to send its request."""
    request_seconds: Positive = 600
    """How long one request may take in all."""
    write_seconds: Positive = 30
    """How long a client may read nothing of what is sent to it before it is cut off."""
    drain_seconds: Positive = 30
    """How long requests under way may go on after a stop was asked for."""
    notice_seconds: Annotated[float, Field(ge=0)] = 0
    """How long new requests are still taken after that, with /readyz saying 503: time for a balancer to notice."""
    max_concurrent: Annotated[int, Field(ge=1)] = 1000
    """Requests at the same time; the next one is told to come back (503)."""
    max_concurrent_per_key: Annotated[int, Field(ge=1)] | None = None
    """Requests at the same time of one key, or of one address without keys; else nine tenths of `max_concurrent`."""
    max_connections: Annotated[int, Field(ge=1)] = 10_000
    """Open connections; beyond, idle ones are closed for new ones. At most half the files a process may open."""
    max_connections_per_address: Annotated[int, Field(ge=1)] | None = None
    """Open connections of one address; requests at the same time of one client behind a trusted balancer."""
    cors_origins: list[str] = []
    """Web pages of these origins may call; none by default."""
    keys_file: str | None = None
    """Callers' API keys, hashed; `slipform keys add` writes it. Anybody may call when there is none."""
    allow_anonymous: bool = False
    """Whether to serve an address that other machines can reach without a file of keys."""
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    """For each key that has no limit of its own, or for each caller's address without keys."""
    wrong_keys_per_minute: Annotated[int, Field(ge=1)] | None = 30
    """From one address; more wrong keys than that are answered with 429. Right ones are let in all the same."""
    open_pages: list[Literal["metrics", "docs", "openapi", "version", "readyz"]] = []
    """Operators' pages that need no operator's key where there are keys."""
    allowed_hosts: list[str] = []
    """Names, beside this machine's own, under which pages are shown on loopback without keys."""
    log: Literal["text", "json", "off"] = "text"
    debug_traces: bool = False
    """Also log what was asked and answered. It may be private: off by default."""


class Cache(_Block):
    """Whether valid answers are kept for the same question."""

    enabled: bool = False
    max_entries: Annotated[int, Field(ge=1)] = 1000
    max_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """In each process; what Redis keeps, Redis limits."""
    ttl_seconds: Positive = 3600
    shared: bool = False
    """Whether callers with different keys share answers; a hit then tells that somebody asked the same before."""


class Redis(_Block):
    """Where several workers or machines share revoked keys, rate limits, the cache and what was learnt of vendors."""

    url: str
    prefix: str = "slipform:"


class Settings(_Block):
    """All settings, with their defaults.

    >>> Settings().enforcement.max_attempts
    3
    """

    default_model: str | Annotated[list[str], Field(min_length=1)] = "local"
    """Who answers when no model is named; `local` is the embedded model. Of a list, the next one is asked when one
    cannot answer."""
    model_aliases: dict[str, str | list[str]] = {}
    """Another name for a model; with a list, the next one is asked when one cannot answer."""
    schemas: str | None = None
    """A folder of named schemas."""
    prices: dict[str, PriceSettings] = {}
    """By `provider/model`; `*` stands for any run of characters."""
    providers: dict[str, ProviderSettings] = {}
    """By name, as in `name/model`. Vendors whose key is in the environment need no entry."""
    output: Output = Output()
    runtime: Runtime = Runtime()
    retries: RetrySettings = RetrySettings()
    enforcement: Enforcement = Enforcement()
    server: ServerSettings = ServerSettings()
    cache: Cache = Cache()
    redis: Redis | None = None

    @property
    def first_model(self) -> str:
        """The default model, or the first of them."""
        return self.default_model if isinstance(self.default_model, str) else self.default_model[0]


def load_settings(path: Path | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of a file; of `$SLIPFORM_CONFIG` or `slipform.yaml` here when there is one; else the defaults.

    Variables of the environment (`SLIPFORM_SERVER__PORT=9000`) come before the file.
    """
    return load_config(path, environment).settings


@dataclass(frozen=True, slots=True)
class ConfigReading:
    """Settings, and what their file itself said: without it nobody can tell a setting that was lost from one never set.

    >>> ConfigReading(Settings()).path is None
    True
    """

    settings: Settings
    path: Path | None = None
    """The file; None where there was none and all settings had their defaults."""
    names: frozenset[str] = frozenset()
    """The settings that the file itself sets, as in `server` and `server.keys_file`."""
    ends_in_newline: bool = False
    """Whether its last line is whole; that of a file that was cut off seldom is."""


def load_config(path: Path | None = None, environment: Mapping[str, str] | None = None) -> ConfigReading:
    """The settings as `load_settings` finds them, with what the file itself said."""
    found = os.environ if environment is None else environment
    chosen = path or Path(found.get("SLIPFORM_CONFIG") or FILE_NAME)
    if path is None and not found.get("SLIPFORM_CONFIG") and not chosen.is_file():
        return ConfigReading(read_settings("", environment=found))
    try:
        text = chosen.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"The config cannot be read: {reason}", where=str(chosen)) from error
    settings, names = _read(text, str(chosen), found)
    return ConfigReading(settings, chosen, names, text.endswith("\n"))


def read_settings(text: str, name: str = FILE_NAME, environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from YAML text, and from the variables of an environment where one is given.

    >>> read_settings("enforcement: {maxAttempts: 5}").enforcement.max_attempts
    5
    >>> read_settings("", environment={"SLIPFORM_SERVER__PORT": "9000"}).server.port
    9000
    """
    return _read(text, name, environment or {})[0]


def _read(text: str, name: str, environment: Mapping[str, str]) -> tuple[Settings, frozenset[str]]:
    """The settings, and the names of those that the text itself sets."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"The config is not YAML: {error.problem}", where=f"{name}:{line}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"The config is not YAML: {error}", where=name) from error
    places = {path: f"{name}:{line}" for path, line in _lines(node, ())}
    if twice := _repeated(node, ()):
        path, line = twice
        raise ConfigError(f"`{_dotted(path)}` is set twice", where=f"{name}:{line}", hint="Keep one of them.")
    data = filled({} if data is None else data, Settings, environment, places)
    names = frozenset(_dotted(tuple(to_snake(str(step)) for step in path)) for path in places if path)
    if isinstance(data, dict):
        for variable, path, value in settings_in(environment):
            put(data, path, read_value(Settings, path, value, variable), variable)
            places[path] = variable
            for size in range(1, len(path)):
                places.setdefault(path[:size], variable)
    try:
        return Settings.model_validate(data), names
    except ValidationError as error:
        raise _explained(error, places, name) from None
