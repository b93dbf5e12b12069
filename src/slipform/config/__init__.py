"""Define the typed settings of `slipform.yaml`, and load them: `load_settings`, `read_settings`.

`slipform init` writes the docstrings of this module into the settings file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from slipform.config.load import read_model
from slipform.errors import ConfigError
from slipform.prices import Price

FILE_NAME = "slipform.yaml"
Positive: TypeAlias = Annotated[float, Field(gt=0)]
Count: TypeAlias = Annotated[int, Field(ge=0)]
_ON_OR_OFF = BeforeValidator(lambda value: ("off", "on")[value] if isinstance(value, bool) else value)
"""YAML reads a bare `on` or `off` as a boolean."""


class _Block(BaseModel):
    """Names are snake_case; camelCase is accepted too. An unknown name is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, strict=True)


class Output(_Block):
    """What answers must be."""

    require_json: bool = False
    """The master switch: every answer is JSON or an error. Recommended for structured work."""
    use_response_schema: bool = False
    """Also validate answers against a schema, where one is named."""
    response_mime_type: str = "application/json"
    """A hint that some providers accept."""


class Runtime(_Block):
    """How calls are made."""

    streaming: bool = False
    """Whether plain answers are streamed; answers that must be JSON never are."""
    timeout_seconds: Positive = 120
    """For one call with its transport retries."""
    remember_downgrades: bool = True
    """Whether the proxy keeps what vendors' refusals taught it in a file, for its next start and for `slipform models
    show`."""


class RetrySettings(_Block):
    """How often invalid answers are retried."""

    attempts: Count = 1
    """Retries after the first call; `n` means `n + 1` calls in all."""
    backoff_seconds: Annotated[float, Field(ge=0)] = 2
    """The pause before a retry."""


class ProviderSettings(_Block):
    """One provider: a name of the catalogue, or any endpoint with a known API."""

    kind: str | None = None
    """The catalogue's entry to follow; the provider's own name by default."""
    base_url: str | None = None
    """Its address; the catalogue's by default."""
    api_key_env: str | None = None
    """The environment variable with its key, never the key itself."""
    headers: dict[str, str] = {}
    """Sent with every call."""
    models: list[str] = []
    """The models it serves; empty allows any name."""
    settings: dict[str, str] = {}
    """Values for the placeholders of the base URL: resource, region, project."""
    max_concurrent: Annotated[int, Field(ge=1)] | None = None
    """Concurrent calls to it; further ones wait."""
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    """Calls to it within any minute, of all processes that share a Redis; further ones wait, and fail where their time
    would not do."""
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = None
    """Tokens that calls to it may take in a minute, judged by their size and the answer they allow, counted alike."""
    timeout_seconds: Positive | None = None
    """For one call; `runtime.timeout_seconds` by default."""
    max_answer_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """Larger answers, decompressed, are refused."""
    ca_file: str | None = None
    """A PEM file of the authorities to trust in place of the system's."""
    client_certificate: str | None = None
    """A PEM file with a client certificate."""
    client_key: str | None = None
    """The certificate's key, if it is in another file."""
    proxy: str | None = None
    """An `http://` or `https://` proxy, or `none`; the environment's by default."""
    strategy: Literal["auto", "native", "tool", "prompted"] = "auto"
    """Pins how schemas are asked for: the vendor's native mode, a forced tool or the prompt; no other is ever taken."""
    step_down: bool = True
    """Whether a call is repeated in a simpler form after a refusal; if not, a refusal is an error."""
    capabilities: dict[str, bool | str | list[str]] = {}
    """What its models can do, where the catalogue is wrong: native, tools, forced_tool, json_mode, dialect, …"""


class AliasTarget(_Block):
    """One model of an alias's list."""

    model: str
    weight: Positive | None = None
    """Its share of the calls: those with weights take turns at random, by their weights, and fall back on each other;
    those without come after them, in their order."""
    defaults: dict[str, Any] = {}
    """Fields of Chat Completions for requests that do not set them: `temperature`, `max_tokens`, `reasoning_effort`,
    `stop` …; `extra_body` and fields that only the vendor knows are sent to it as they are."""


class ModelAlias(_Block):
    """Another name for a model, with what its requests need not say themselves."""

    model: str | Annotated[list[str | AliasTarget], Field(min_length=1)]
    """The model, or a list that is tried in its order, or by weights."""
    defaults: dict[str, Any] = {}
    """For all its models, over the defaults of one; see `AliasTarget`."""
    response_schema: str | None = Field(None, alias="schema")
    """The name of a schema that answers are held to when the request has none; written `schema`."""


class PriceSettings(_Block):
    """The price of a million tokens of a model, in any currency."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]
    cached: Annotated[float, Field(ge=0)] | None = None
    """For input tokens read from the vendor's cache; as `input` by default."""
    cache_write: Annotated[float, Field(ge=0)] | None = None
    """For input tokens written to the vendor's cache; as `input` by default."""


class Patches(_Block):
    """Mechanical edits that may make a value valid; see the guide."""

    coerce: bool = True
    """`"42"` becomes 42, and the like."""
    drop_extra: bool = True
    """Remove keys that the schema forbids."""
    rename_keys: bool = True
    """`firstName` becomes `first_name`, when exactly one key matches."""
    units: bool = False
    """`"12 kg"` becomes 12."""
    wrap_scalars: bool = False
    """`1` becomes `[1]` where the schema has an array."""
    fill_constants: bool = True
    """Add a missing key that can have one value only."""
    fill_defaults: bool = False
    """Add a missing key with its schema's `default`."""
    drop_nulls: bool = True
    """Leave out an optional key that is null where null is not allowed."""
    unwrap: bool = True
    """Take the answer out of a key, or a tool call, that is written around it."""


class Enforcement(_Block):
    """How the proxy enforces schemas."""

    max_attempts: Annotated[int, Field(ge=1)] = 3
    """Model calls for one answer, in all."""
    max_seconds: Positive | None = None
    """For all calls of one answer together."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """For all calls of one answer together."""
    max_cost: Positive | None = None
    """Needs a known price for the models in use: one that ships with slipform, or one in `prices`."""
    max_calls: Annotated[int, Field(ge=1)] = 24
    """Upstream calls for one request in all: over the models of a fallback list, their attempts and the transport
    retries together, on top of the budgets of each."""
    max_continuations: Annotated[int, Field(ge=0)] = 20
    """Calls that continue an answer which the vendor's output limit cut off; they are not attempts."""
    formatter: str | None = None
    """A model that reformats, on the last attempt, the answer of the first one."""
    reask_scope: Literal["auto", "full", "parts"] = "auto"
    """Whether a retry asks for the whole answer, or only for its invalid parts."""
    tools: Literal["enforce", "pass"] = "enforce"
    """Whether the arguments of tool calls are validated against the tools' schemas."""
    on_failure: Literal["raise", "raw"] = "raise"
    """What an invalid answer becomes after the last attempt: an error, or its text with a warning."""
    on_incomplete: Literal["respond", "raise"] = "respond"
    """What a refused, filtered or truncated answer becomes: a 200 in the API's own form, or an error (422)."""
    response_format_max_schema_chars: Annotated[int, Field(ge=100)] = 2000
    """Characters of a schema in the prompt; a longer one is shortened there, but validated in full."""
    schema_descriptions: bool = False
    """Whether a schema in the prompt keeps its descriptions."""
    repair: bool = True
    """Whether broken JSON is repaired; without it, JSON is still found in a fence or in prose."""
    strict_trailing: bool = False
    """Whether text around the JSON, which is left out otherwise, makes an answer invalid."""
    stop_after_json: bool = False
    """Whether the model is stopped where the JSON closes; calls are streamed for it."""
    response_format_fail_hard: bool = False
    """Whether an answer that can no longer be valid is stopped at once, and fails as `invalid_response_format`."""
    force_json_start: bool = False
    """Whether the embedded model's first character must open JSON."""
    max_prefix_chars: Annotated[int, Field(ge=1)] | None = None
    """Characters before the JSON, after which failing hard gives up: 500, or 50 where the start is forced."""
    open_objects: Literal["auto", "kept", "closed"] = "auto"
    """Whether objects that say nothing of other keys keep a place for them in a vendor's strict mode: `auto` where not
    all of their properties are required."""
    stream_mode: Literal["auto", "live", "buffer", "reject"] = "auto"
    """How answers with a schema are streamed: as they are written, or whole once they are valid."""
    adopt_schemas: Annotated[Literal["off", "json_mode", "all"], _ON_OR_OFF] = "json_mode"
    """Whether a schema that a known client library wrote into the prompt is enforced: never, in system messages of
    requests in JSON mode, or wherever it is recognised."""
    patches: Patches = Patches()


class ServerSettings(_Block):
    """Where the proxy listens, and its limits."""

    host: str = "127.0.0.1"
    """The address to listen on; `0.0.0.0` lets other machines call."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """0 picks a free one."""
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    """Serving processes."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 8 * 1024 * 1024
    """Larger requests are refused."""
    max_forwarded_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """The same for requests that are only forwarded: embeddings, images, audio."""
    max_file_bytes: Annotated[int, Field(ge=1024)] = 512 * 1024 * 1024
    """The same for files that are uploaded or downloaded; they are never held whole."""
    max_schema_bytes: Annotated[int, Field(ge=1024, le=5_000_000)] = 500_000
    """For the schemas of one request together: its response format and its tools."""
    max_schema_nodes: Annotated[int, Field(ge=100)] = 20_000
    """Values (objects, lists, strings, numbers) in those schemas; a pattern counts as 20."""
    body_seconds: Positive = 30
    """How long a client may take to send its request."""
    request_seconds: Positive = 600
    """How long one request may take in all."""
    write_seconds: Positive = 30
    """How long a client may read nothing before it is disconnected."""
    drain_seconds: Positive = 30
    """How long running requests may continue after a stop signal."""
    notice_seconds: Annotated[float, Field(ge=0)] = 0
    """How long new requests are still accepted after it, while /readyz answers 503: time for a balancer to notice."""
    vendor_models: bool = True
    """Whether lists of models hold those of the configured vendors, which are asked for theirs."""
    max_concurrent: Annotated[int, Field(ge=1)] = 1000
    """Concurrent requests; further ones are answered with 503 and `retry-after`."""
    max_concurrent_per_key: Annotated[int, Field(ge=1)] | None = None
    """Concurrent requests of one key, or of one address without keys; nine tenths of `max_concurrent` by default."""
    max_connections: Annotated[int, Field(ge=1)] = 10_000
    """Open connections; beyond it, idle ones are closed for new ones. At most half the files a process may open."""
    max_connections_per_address: Annotated[int, Field(ge=1)] | None = None
    """Open connections of one address; concurrent requests of one client behind a trusted balancer."""
    cors_origins: list[str] = []
    """Web pages of these origins may call; none by default."""
    keys_file: str | None = None
    """Callers' API keys, hashed; `slipform keys add` writes it. Without it anybody may call."""
    allow_anonymous: bool = False
    """Whether to serve an address that other machines can reach without a file of keys."""
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    """For each key that has no limit of its own, or for each caller's address without keys."""
    wrong_keys_per_minute: Annotated[int, Field(ge=1)] | None = 30
    """From one address; further wrong keys are answered with 429. Valid keys are still accepted."""
    open_pages: list[Literal["metrics", "docs", "openapi", "version", "readyz"]] = []
    """Operators' pages that need no operator's key."""
    allowed_hosts: list[str] = []
    """Host names, beside this machine's own, under which pages are served on loopback without keys."""
    log: Annotated[Literal["text", "json", "off"], _ON_OR_OFF] = "text"
    debug_traces: bool = False
    """Also log requests and responses in full. They may be private: off by default. Implies `traces: on`."""
    console: Annotated[Literal["auto", "on", "off"], _ON_OR_OFF] = "auto"
    """Whether `/console` is served; `auto`: on loopback without keys, and where there is an operator's key."""
    console_hosts: list[str] = []
    """Host names, beside this machine's own, under which the console is served."""
    console_bytes: Annotated[int, Field(ge=64 * 1024)] = 8 * 1024 * 1024
    """For the figures of recent calls, in each worker."""
    traces: Annotated[Literal["auto", "off", "failures", "on"], _ON_OR_OFF] = "auto"
    """Whether the console records prompts and answers: of no call, of failed ones, of all; `auto`: of all, in memory
    only, on loopback without keys, and of none elsewhere."""
    trace_bytes: Annotated[int, Field(ge=1024 * 1024)] = 64 * 1024 * 1024
    """For those words, in each worker."""
    history: str | None = None
    """A SQLite file that keeps the console's calls over restarts; without it they are in memory only."""
    history_days: Positive = 14
    """How long the figures of calls are kept there."""
    history_text_days: Positive = 2
    """How long the words of traced calls are kept there."""
    history_bytes: Annotated[int, Field(ge=1024 * 1024)] = 1024 * 1024 * 1024
    """How large the file may become; the oldest calls make way."""


class Cache(_Block):
    """Whether valid answers are cached for identical requests."""

    enabled: bool = False
    max_entries: Annotated[int, Field(ge=1)] = 1000
    max_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """In each process; Redis has its own limits."""
    ttl_seconds: Positive = 3600
    shared: bool = False
    """Whether callers with different keys share answers; a hit then reveals that somebody sent the same request."""


class LedgerSettings(_Block):
    """Where it is written down what callers' keys have spent."""

    path: str | None = None
    """A SQLite file; beside `server.keys_file` by default, and none without keys."""
    keep_days: Annotated[int, Field(ge=1)] = 90
    """How long single calls are kept for `slipform spend`; the sums that budgets go by are kept longer."""
    assumed_output_tokens: Annotated[int, Field(ge=1)] = 1024
    """Reserved for the answer to a request without a limit (`max_tokens`), and sent with it if the key can run out."""
    on_loss: Literal["refuse", "local"] = "refuse"
    """What becomes of keys with budgets while Redis, where machines count together, is away: they are refused, or this
    machine goes on with what it knows alone."""


class Signatures(_Block):
    """How long, and how much of, what vendors sign (thinking, tool calls) is kept for callers of other APIs."""

    max_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """For all keys; Redis has its own limit."""
    max_bytes_per_key: Annotated[int, Field(ge=1024)] = 8 * 1024 * 1024
    ttl_seconds: Positive = 86_400
    file: str | None = None
    """A SQLite file, which survives a restart. Without it: Redis if configured, else a temporary file that all workers
    share, or with one worker the memory."""


class StoredResponses(Signatures):
    """How long, and how much of, answers to Responses requests are stored for vendors that store none themselves."""

    enabled: bool = True
    """Whether they are stored at all; otherwise each request has to carry its whole conversation."""
    max_bytes: Annotated[int, Field(ge=1024)] = 256 * 1024 * 1024
    max_bytes_per_key: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024


class FetchSettings(_Block):
    """Whether images and documents that requests name by address are fetched for vendors that take bytes only."""

    enabled: bool = False
    max_bytes: Annotated[int, Field(ge=1024)] = 8 * 1024 * 1024
    """Of all files of one request."""
    max_files: Annotated[int, Field(ge=1)] = 16
    """In one request."""
    seconds: Positive = 10
    """How long fetching the files of one request may take."""


class Redis(_Block):
    """Where workers or machines share keys, rate limits, budgets, the cache, downgrades, signatures and responses."""

    url: str
    prefix: str = "slipform:"


class Settings(_Block):
    """All settings, with their defaults.

    >>> Settings().enforcement.max_attempts
    3
    """

    default_model: str | Annotated[list[str], Field(min_length=1)] = "local"
    """The model of requests that name none; `local` is the embedded model. A list is tried in its order."""
    model_aliases: dict[str, str | ModelAlias | list[str | AliasTarget]] = {}
    """Another name for a model, or for a list that is tried in its order or by weights; with a schema or defaults."""
    schemas: str | None = None
    """A folder of named schemas."""
    prices: dict[str, PriceSettings] = {}
    """By `provider/model`; `*` matches any characters. Other models have the prices that ship with slipform."""
    providers: dict[str, ProviderSettings] = {}
    """By name, as in `name/model`. Vendors whose key is in the environment need no entry."""
    output: Output = Output()
    runtime: Runtime = Runtime()
    retries: RetrySettings = RetrySettings()
    enforcement: Enforcement = Enforcement()
    server: ServerSettings = ServerSettings()
    cache: Cache = Cache()
    ledger: LedgerSettings = LedgerSettings()
    signatures: Signatures = Signatures()
    stored_responses: StoredResponses = StoredResponses()
    fetch: FetchSettings = FetchSettings()
    redis: Redis | None = None

    @property
    def alias_models(self) -> dict[str, str | list[str]]:
        """The aliases, each with the model or models it stands for."""
        models: dict[str, str | list[str]] = {}
        for name, alias in self.model_aliases.items():
            listed = alias.model if isinstance(alias, ModelAlias) else alias
            if isinstance(listed, str):
                models[name] = listed
            else:
                models[name] = [each.model if isinstance(each, AliasTarget) else each for each in listed]
        return models

    @property
    def own_prices(self) -> dict[str, Price]:
        """The prices of the settings, as calls are priced by them."""
        return {name: Price(**price.model_dump()) for name, price in self.prices.items()}

    @property
    def first_model(self) -> str:
        """The default model, or the first of them."""
        if isinstance(self.default_model, str):
            return self.default_model
        return self.default_model[0]


def load_settings(path: Path | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of a file, by default `$SLIPFORM_CONFIG` or `slipform.yaml` here, else the defaults.

    Environment variables (`SLIPFORM_SERVER__PORT=9000`) override the file. Raises `ConfigError` for every mistake.
    """
    return load_config(path, environment).settings


@dataclass(frozen=True, slots=True)
class ConfigReading:
    """Settings and facts about their file, by which a reload notices a setting that was lost.

    >>> ConfigReading(Settings()).path is None
    True
    """

    settings: Settings
    path: Path | None = None
    """The file; None without one."""
    names: frozenset[str] = frozenset()
    """The settings in the file, as in `server` and `server.keys_file`."""
    ends_in_newline: bool = False
    """Whether its last line is whole; a truncated file's seldom is."""
    lines: Mapping[str, str] = field(default_factory=dict)
    """Where each of them stands, as in `slipform.yaml:3`."""

    @contextmanager
    def locating_mistakes(self) -> Iterator[None]:
        """Add the line of the setting to a `ConfigError` that names one, as those do that are seen after reading."""
        try:
            yield
        except ConfigError as error:
            steps = (error.where or "").split(".")
            prefixes = (".".join(steps[:size]) for size in range(len(steps), 0, -1))
            if line := next((self.lines[name] for name in prefixes if name in self.lines), None):
                error.where = f"{line} (`{error.where}`)"
            raise


def load_config(path: Path | None = None, environment: Mapping[str, str] | None = None) -> ConfigReading:
    """Return the settings as `load_settings` does, with the facts about their file."""
    variables = os.environ if environment is None else environment
    file = path or Path(variables.get("SLIPFORM_CONFIG") or FILE_NAME)
    if path is None and not variables.get("SLIPFORM_CONFIG") and not file.is_file():
        return ConfigReading(read_settings("", environment=variables))
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"The config cannot be read: {reason}", where=str(file)) from error
    settings, lines = read_model(Settings, text, str(file), variables)
    return ConfigReading(settings, file, frozenset(lines), text.endswith("\n"), lines)


def read_settings(text: str, name: str = FILE_NAME, environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of a YAML text, overridden by environment variables.

    >>> read_settings("enforcement: {maxAttempts: 5}").enforcement.max_attempts
    5
    >>> read_settings("", environment={"SLIPFORM_SERVER__PORT": "9000"}).server.port
    9000
    """
    return read_model(Settings, text, name, environment or {})[0]
