"""Define the typed settings of `slipform.yaml`, and load them: `load_settings`, `read_settings`.

`slipform init` writes the docstrings of this module into the settings file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from slipform import seams
from slipform.config.load import read_model
from slipform.errors import ConfigError
from slipform.prices import Price
from slipform.settings_block import ON_OR_OFF, Count, Into, Positive, SettingsBlock

if TYPE_CHECKING:
    from slipform.addons.server.settings import Cache as Cache
    from slipform.addons.server.settings import FetchSettings as FetchSettings
    from slipform.addons.server.settings import LedgerSettings as LedgerSettings
    from slipform.addons.server.settings import ServerSettings as ServerSettings
    from slipform.addons.server.settings import Signatures as Signatures
    from slipform.addons.server.settings import StoredResponses as StoredResponses
else:
    ServerSettings, Cache, LedgerSettings, Signatures, StoredResponses, FetchSettings = map(
        seams.load, seams.BLOCKS.values()
    )

FILE_NAME = "slipform.yaml"


class Output(SettingsBlock):
    """What answers must be."""

    require_json: bool = False
    """The master switch: every answer is JSON or an error. Recommended for structured work."""
    use_response_schema: bool = False
    """Also validate answers against a schema, where one is named."""
    response_mime_type: str = "application/json"
    """A hint that some providers accept."""


class Runtime(SettingsBlock):
    """How calls are made."""

    streaming: bool = False
    """Whether plain answers are streamed; answers that must be JSON never are."""
    timeout_seconds: Positive = 120
    """For one call with its transport retries."""
    remember_downgrades: bool = True
    """Whether the proxy keeps what vendors' refusals taught it in a file, for its next start and for `slipform models
    show`."""


class RetrySettings(SettingsBlock):
    """How often invalid answers are retried."""

    attempts: Count | None = None
    """Another name for `enforcement.max_attempts`: `n` retries after the first call are `n + 1` calls in all."""
    backoff_seconds: Annotated[float, Field(ge=0)] = 2
    """The pause before a retry."""


class ProviderSettings(SettingsBlock):
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


class AliasTarget(SettingsBlock):
    """One model of an alias's list."""

    model: str
    weight: Positive | None = None
    """Its share of the calls: those with weights take turns at random, by their weights, and fall back on each other;
    those without come after them, in their order."""
    defaults: dict[str, Any] = {}
    """Fields of Chat Completions for requests that do not set them: `temperature`, `max_tokens`, `reasoning_effort`,
    `stop` …; `extra_body` and fields that only the vendor knows are sent to it unchanged."""


class ModelAlias(SettingsBlock):
    """Another name for a model, with what its requests need not say themselves."""

    model: str | Annotated[list[str | AliasTarget], Field(min_length=1)]
    """The model, or a list that is tried in its order, or by weights."""
    defaults: dict[str, Any] = {}
    """For all its models, over the defaults of one; see `AliasTarget`."""
    response_schema: str | None = Field(None, alias="schema")
    """The name of a schema that answers are validated against when the request has none; written `schema`."""


class PriceSettings(SettingsBlock):
    """The price of a million tokens of a model, in any currency."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]
    cached: Annotated[float, Field(ge=0)] | None = None
    """For input tokens read from the vendor's cache; as `input` by default."""
    cache_write: Annotated[float, Field(ge=0)] | None = None
    """For input tokens written to the vendor's cache; as `input` by default."""


class Patches(SettingsBlock):
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


class Enforcement(SettingsBlock):
    """How schemas are enforced, from Python, on the command line and on the proxy."""

    max_attempts: Annotated[Annotated[int, Field(ge=1)], Into("budget.attempts")] = 3
    """Model calls for one answer, in all."""
    max_seconds: Annotated[Positive | None, Into("budget.seconds")] = None
    """For all calls of one answer together."""
    max_tokens: Annotated[Annotated[int, Field(ge=1)] | None, Into("budget.tokens")] = None
    """For all calls of one answer together."""
    max_cost: Annotated[Positive | None, Into("budget.money")] = None
    """Needs a known price for the models in use: one that ships with slipform, or one in `prices`."""
    max_calls: Annotated[Annotated[int, Field(ge=1)], Into("budget.calls")] = 24
    """Upstream calls for one request in all: over the models of a fallback list, their attempts and the transport
    retries together, on top of the budgets of each."""
    max_continuations: Annotated[Annotated[int, Field(ge=0)], Into("budget.continuations")] = 20
    """Calls that continue an answer which the vendor's output limit cut off; they are not attempts."""
    formatter: Annotated[str | None, Into("formatter")] = None
    """A model that reformats, on the last attempt, the answer of the first one."""
    reask_scope: Annotated[Literal["auto", "full", "parts"], Into("reask_scope")] = "auto"
    """Whether a retry asks for the whole answer, or only for its invalid parts."""
    tools: Annotated[Literal["enforce", "pass"], Into("tools")] = "enforce"
    """Whether the arguments of tool calls are validated against the tools' schemas."""
    on_failure: Annotated[Literal["raise", "raw"], Into("on_failure")] = "raise"
    """What an invalid answer becomes after the last attempt: an error, or its text with a warning."""
    on_incomplete: Literal["respond", "raise"] = "respond"
    """What a refused, filtered or truncated answer becomes: a 200 in the API's own form, or an error (422)."""
    response_format_max_schema_chars: Annotated[Annotated[int, Field(ge=100)], Into("max_schema_chars")] = 2000
    """Characters of a schema in the prompt; a longer one is shortened there, but validated in full."""
    schema_descriptions: Annotated[bool, Into("descriptions")] = False
    """Whether a schema in the prompt keeps its descriptions."""
    repair: Annotated[bool, Into("repair")] = True
    """Whether broken JSON is repaired; without it, JSON is still found in a fence or in prose."""
    strict_trailing: Annotated[bool, Into("guard.strict_trailing")] = False
    """Whether text around the JSON, which is left out otherwise, makes an answer invalid."""
    stop_after_json: Annotated[bool, Into("guard.stop_after_json")] = False
    """Whether the model is stopped where the JSON closes; calls are streamed for it."""
    response_format_fail_hard: Annotated[bool, Into("guard.response_format_fail_hard")] = False
    """Whether an answer that can no longer be valid is stopped at once, and fails as `invalid_response_format`."""
    force_json_start: Annotated[bool, Into("guard.force_json_start")] = False
    """Whether the embedded model's first character must open JSON."""
    max_prefix_chars: Annotated[Annotated[int, Field(ge=1)] | None, Into("guard.max_prefix_chars")] = None
    """Characters before the JSON, after which failing hard gives up: 500, or 50 where the start is forced."""
    prompt_cache: Annotated[Annotated[Literal["auto", "on", "off"], ON_OR_OFF], Into("prompt_cache")] = "auto"
    """Whether the part that requests share (system, tools, schema) is marked for Anthropic's cache: `auto` in `batch`
    and `extract` only."""
    split_schemas: Annotated[Literal["auto", "never"], Into("split")] = "auto"
    """Whether a schema that a vendor refuses as too large is asked for in parts, side by side."""
    open_objects: Literal["auto", "kept", "closed"] = "auto"
    """Whether objects whose schema does not mention other keys keep a place for them in a vendor's strict mode: `auto`
    where not all of their properties are required."""
    stream_mode: Literal["auto", "live", "buffer", "reject"] = "auto"
    """How answers with a schema are streamed: as they are written, or whole once they are valid."""
    adopt_schemas: Annotated[Literal["off", "json_mode", "all"], ON_OR_OFF] = "json_mode"
    """Whether a schema that a known client library wrote into the prompt is enforced: never, in system messages of
    requests in JSON mode, or wherever it is recognised."""
    patches: Annotated[Patches, Into("switches")] = Patches()


class Redis(SettingsBlock):
    """Where workers or machines share keys, rate limits, budgets, the cache, downgrades, signatures and responses."""

    url: str
    prefix: str = "slipform:"


class Settings(SettingsBlock):
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
        """The aliases, each with its model or models."""
        models: dict[str, str | list[str]] = {}
        for name, alias in self.model_aliases.items():
            listed = alias.model if isinstance(alias, ModelAlias) else alias
            if isinstance(listed, str):
                models[name] = listed
            else:
                models[name] = [each.model if isinstance(each, AliasTarget) else each for each in listed]
        return models

    @property
    def max_attempts(self) -> int:
        """Model calls for one answer in all: `enforcement.max_attempts`, else `retries.attempts` and the first call.

        >>> read_settings("retries: {attempts: 1}").max_attempts, Settings().max_attempts
        (2, 3)
        """
        if self.retries.attempts is None or "max_attempts" in self.enforcement.model_fields_set:
            return self.enforcement.max_attempts
        return self.retries.attempts + 1

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
    """The place of each of them, as in `slipform.yaml:3`."""

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
