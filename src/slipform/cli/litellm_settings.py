"""Convert the settings that a LiteLLM configuration has beside its models."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol
from urllib.parse import urlsplit

from slipform.cli.litellm_names import OTEL, SPANS
from slipform.config.load import SettingPath

_REFERENCE = re.compile(r"os\.environ/(\w+)|\$\{(\w+)\}|\$([A-Z_][A-Z0-9_]*)")
_MEGABYTE = 1024 * 1024


class MakeRemark(Protocol):
    """Adds a line to the report."""

    def __call__(self, kind: Literal["left out", "note"], name: str, text: str, place: SettingPath) -> None:
        """Say what became of a setting."""
        ...


@dataclass(slots=True)
class SectionReader:
    """Reads the fields of `litellm_settings`, `router_settings` and `general_settings` that have a place here."""

    note: MakeRemark
    settings: dict[str, Any] = field(default_factory=dict)

    def read(self, fields: Mapping[str, Any], place: SettingPath) -> bool:
        """Take one field of a section; False where it has no place here."""
        name = str(place[-1])
        if name.startswith("redis_") and name in _REDIS:
            if "redis" not in self.settings:
                self._redis(fields, place, "redis_")
            return True
        take = TAKEN.get(name)
        if take is None:
            return False
        take(self, fields[name], place)
        return True

    def timeout(self, value: Any, place: SettingPath) -> None:
        """How long a call may take."""
        number = number_of(value)
        if number:
            self.settings["runtime"] = {"timeout_seconds": number}
            if number > 600:
                self.settings.setdefault("server", {})["request_seconds"] = number
        else:
            self.note("left out", ".".join(map(str, place)), "it is not a number of seconds", place)

    def callbacks(self, value: Any, place: SettingPath) -> None:
        """Translate the callbacks that LiteLLM runs for a call."""
        name = ".".join(map(str, place))
        names = [value] if isinstance(value, str) else value
        for each in names if isinstance(names, list) else ():
            callback = str(each)
            if callback in SPANS:
                self.note("note", name, "/metrics is always on, for Prometheus", place)
            elif callback in OTEL:
                self.note("note", name, f"{callback}: set OTEL_EXPORTER_OTLP_ENDPOINT, and spans go there", place)
            elif "." in callback:
                self.note("left out", name, f"{callback}: Python of LiteLLM's cannot run here", place)
            else:
                text = f"{callback} has no exporter here; spans go where OTEL_EXPORTER_OTLP_ENDPOINT says"
                self.note("left out", name, text, place)

    def cache(self, value: Any, place: SettingPath) -> None:
        """Whether answers are cached."""
        if value is True:
            self.settings.setdefault("cache", {})["enabled"] = True
            self.note("note", ".".join(map(str, place)), "only answers that were held to a schema are cached", place)

    def cache_params(self, value: Any, place: SettingPath) -> None:
        """Where and how long they are."""
        params = mapping_of(value)
        kind = params.get("type", "local")
        name = ".".join(map(str, place))
        if kind not in ("local", "redis"):
            self.note("left out", name, f"a cache of the type {kind!r}; slipform caches in memory and in Redis", place)
            self.settings.pop("cache", None)
            return
        ttl = number_of(params.get("ttl"))
        if ttl and self.settings.get("cache"):
            self.settings["cache"]["ttl_seconds"] = ttl
        if kind == "redis":
            self._redis(params, place, "")
        taken = {"type", "ttl", "host", "port", "password", "url", "db", "username", "ssl"}
        for each in params:
            if each not in taken:
                self.note("left out", f"{name}.{each}", "slipform has no such setting of a cache", (*place, each))

    def _redis(self, params: Mapping[str, Any], place: SettingPath, prefix: str) -> None:
        name = ".".join(map(str, place))
        if (url := params.get(f"{prefix}url")) is not None:
            variable = variable_of(str(url))
            if variable is None and not self._is_usable(str(url), name, place):
                return
            if variable is None and (urlsplit(str(url)).password or urlsplit(str(url)).username):
                self.note("left out", name, "the address holds a password, which is not copied: set REDIS_URL", place)
                variable = "REDIS_URL"
            text = literal_of(str(url)) if variable is None else f"${{{variable}:-redis://127.0.0.1:6379/0}}"
            self.settings["redis"] = {"url": text}
            return
        host, port = (self._part(params.get(f"{prefix}{each}"), each) for each in ("host", "port"))
        login = ""
        if (password := params.get(f"{prefix}password")) not in (None, ""):
            variable = variable_of(str(password)) or "REDIS_PASSWORD"
            login = f":${{{variable}:-}}@"
            if variable_of(str(password)) is None:
                text = "a password stands in the file and is not copied: put it into the environment as REDIS_PASSWORD"
                self.note("left out", name, text, place)
        scheme = "rediss" if params.get(f"{prefix}ssl") is True else "redis"
        address = f"{scheme}://{login}{host}:{port}/{params.get(f'{prefix}db') or 0}"
        if self._is_usable(_VARIABLE.sub("1", address), name, place):
            self.settings["redis"] = {"url": address}

    def _is_usable(self, address: str, name: str, place: SettingPath) -> bool:
        try:
            _check_redis_url(address)
        except ValueError as error:
            self.note("left out", name, f"this Redis cannot be addressed: {error}", place)
            return False
        return True

    def _part(self, value: Any, part: str) -> str:
        default = "127.0.0.1" if part == "host" else "6379"
        variable = variable_of(str(value))
        if variable is not None:
            return f"${{{variable}:-{default}}}"
        if value not in (None, ""):
            return literal_of(str(value))
        return f"${{REDIS_{part.upper()}:-{default}}}"

    def master_key(self, value: Any, place: SettingPath) -> None:
        """Callers need keys."""
        if value is None:
            return
        self.settings.setdefault("server", {})["keys_file"] = "keys.json"
        text = "keys are hashed, so clients need a new one: `slipform keys add master --operator` makes it"
        self.note("left out", ".".join(map(str, place)), text, place)

    def log(self, value: Any, _: SettingPath) -> None:
        """The form of the log."""
        if value is True:
            self.settings.setdefault("server", {})["log"] = "json"

    def most_at_once(self, value: Any, place: SettingPath) -> None:
        """How many requests may be under way."""
        number = number_of(value)
        if number and number >= 1:
            self.settings.setdefault("server", {})["max_concurrent"] = int(number)
        elif value is not None:
            self.note("left out", ".".join(map(str, place)), "it is not a number of requests", place)

    def body_size(self, value: Any, place: SettingPath) -> None:
        """How large a request may be."""
        number = number_of(value)
        if number and number * _MEGABYTE >= 1024:
            self.settings.setdefault("server", {})["max_body_bytes"] = int(number * _MEGABYTE)
        else:
            self.note("left out", ".".join(map(str, place)), "it is not a size", place)

    def spend_days(self, value: Any, place: SettingPath) -> None:
        """How long the ledger keeps single calls."""
        days = re.fullmatch(r"(\d+)d", str(value))
        if days and int(days[1]) >= 1:
            self.settings["ledger"] = {"keep_days": int(days[1])}
        else:
            self.note("left out", ".".join(map(str, place)), "set `ledger.keep_days`", place)

    def strategy(self, value: Any, place: SettingPath) -> None:
        """How deployments of one name are chosen."""
        if value not in (None, "simple-shuffle"):
            text = f"{value}: deployments of one name are shared out at random, by weight"
            self.note("left out", ".".join(map(str, place)), text, place)

    def no_auth(self, value: Any, place: SettingPath) -> None:
        """Nobody needs a key."""
        if value is True:
            text = "without keys slipform serves this machine only; `server.allow_anonymous: true` opens it"
            self.note("note", ".".join(map(str, place)), text, place)

    def workers(self, value: Any, place: SettingPath) -> None:
        """How many processes serve."""
        number = number_of(value)
        if number and 1 <= number <= 256:
            self.settings.setdefault("server", {})["workers"] = int(number)
        else:
            self.note("left out", ".".join(map(str, place)), "it is not a number of processes", place)

    def nothing(self, _: Any, __: SettingPath) -> None:
        """It goes with another setting."""


_VARIABLE = re.compile(r"\$\{[^}]*\}")
_REDIS = ("redis_host", "redis_port", "redis_password", "redis_url", "redis_db", "redis_ssl")
TAKEN: dict[str, Callable[[SectionReader, Any, SettingPath], None]] = {
    "request_timeout": SectionReader.timeout,
    "timeout": SectionReader.timeout,
    "callbacks": SectionReader.callbacks,
    "success_callback": SectionReader.callbacks,
    "failure_callback": SectionReader.callbacks,
    "cache": SectionReader.cache,
    "cache_params": SectionReader.cache_params,
    "json_logs": SectionReader.log,
    "master_key": SectionReader.master_key,
    "global_max_parallel_requests": SectionReader.most_at_once,
    "max_parallel_requests": SectionReader.most_at_once,
    "max_request_size_mb": SectionReader.body_size,
    "maximum_spend_logs_retention_period": SectionReader.spend_days,
    "maximum_spend_logs_retention_interval": SectionReader.nothing,
    "routing_strategy": SectionReader.strategy,
    "disable_auth": SectionReader.no_auth,
    "num_workers": SectionReader.workers,
    "background_workers": SectionReader.workers,
}
_IS: Final[Mapping[str, Callable[[Any], bool]]] = MappingProxyType({
    "a number": lambda value: number_of(value) is not None,
    "a number above 0": lambda value: bool(number_of(value)),
    "true or false": lambda value: isinstance(value, bool),
    "a text": lambda value: isinstance(value, str),
    "a map": lambda value: isinstance(value, Mapping),
    "a list": lambda value: isinstance(value, list),
    "a list or a text": lambda value: isinstance(value, list | str),
    "a list, a map or a text": lambda value: isinstance(value, list | Mapping | str),
})  # fmt: skip
_KINDS: Final[Mapping[str, Sequence[str]]] = MappingProxyType({
    "a number": ("order", "input_cost_per_token", "output_cost_per_token"),
    "a number above 0": ("timeout", "request_timeout", "rpm", "tpm", "weight", "max_parallel_requests"),
    "true or false": ("cache", "json_logs", "disable_auth"),
    "a text": ("api_base", "base_url", "api_key", "custom_llm_provider", "organization"),
    "a map": (
        "headers", "extra_headers", "extra_body", "cache_params", "model_group_alias", "model_alias_map",
        "default_params", "default_litellm_params", "environment_variables",
    ),
    "a list": ("credential_list",),
    "a list or a text": ("callbacks", "success_callback", "failure_callback", "include"),
    "a list, a map or a text": (
        "fallbacks", "default_fallbacks", "context_window_fallbacks", "content_policy_fallbacks",
    ),
})  # fmt: skip
KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}
"""What the value of a field has to be: any other would be read as if the field were not there."""


def of_their_kind(fields: Mapping[str, Any], section: str, place: SettingPath, note: MakeRemark) -> dict[str, Any]:
    """The fields, without those whose value is of another kind than theirs; each of these gets its line."""
    matching = {}
    for name, value in fields.items():
        kind = KIND_OF.get(str(name))
        if kind is None or value is None or value == "" or _IS[kind](value):
            matching[str(name)] = value
        else:
            note("left out", f"{section}.{name}".lstrip("."), f"it should be {kind}", (*place, str(name)))
    return matching


READ_WITH_ALIASES = frozenset({
    "fallbacks", "default_fallbacks", "context_window_fallbacks", "content_policy_fallbacks", "default_params",
    "default_litellm_params",
})  # fmt: skip
"""Fields that say something of the models."""


def mapping_of(value: Any) -> Mapping[str, Any]:
    """The value, if it is a mapping; else an empty one."""
    return value if isinstance(value, Mapping) else {}


def number_of(value: Any) -> float | None:
    """A number that is not negative, also one that is written as text.

    >>> number_of("60"), number_of(True), number_of("-1")
    (60, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    if not 0 <= number < float("inf"):
        return None
    return int(number) if number.is_integer() else number


def variable_of(text: str) -> str | None:
    """The environment variable that a text of LiteLLM's stands for.

    >>> variable_of("os.environ/OPENAI_API_KEY"), variable_of("${KEY}"), variable_of("sk-1")
    ('OPENAI_API_KEY', 'KEY', None)
    """
    match = _REFERENCE.fullmatch(text.strip())
    if match is None:
        return None
    return match[1] or match[2] or match[3]


def literal_of(text: str) -> str:
    """A text that means itself in slipform.yaml."""
    return text.replace("${", "$${")


def _check_redis_url(url: str) -> str:
    """Return the address of a Redis as it is; raises `ValueError` for one that no client can use.

    >>> _check_redis_url("redis://127.0.0.1:6379/0")
    'redis://127.0.0.1:6379/0'
    """
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ValueError("the address of a Redis begins with redis://, rediss:// or unix://")
    if parts.scheme != "unix" and not parts.hostname:
        raise ValueError("the address names no host")
    _ = parts.port  # raises for a port that is not a number
    return url
