"""Read the values of a LiteLLM configuration by the table of its names, and report each conversion.

Nothing that could be a secret is copied: a key in the file is replaced by the name of an environment variable.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple

from slipform.config.load import SettingPath

TABLES: Final = tomllib.loads(files("slipform.cli").joinpath("litellm.toml").read_text(encoding="utf-8"))
NAMES: Final[Mapping[str, frozenset[str]]] = {key: frozenset(text.split()) for key, text in TABLES["names"].items()}
KIND_OF, LEFT_OUT, NOTES = (
    {name: text for text, names in TABLES[table].items() for name in names.split()}
    for table in ("kinds", "left_out", "note")
)
_REFERENCE = re.compile(r"os\.environ/(\w+)|\$\{(\w+)\}|\$([A-Z_][A-Z0-9_]*)")
SECRET_NAME = re.compile(r"key|token|secret|password|credential|authorization|cookie|bearer", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"\b(sk-|pk-|gsk_|hf_|ghp_|github_pat_|xai-|AIza|AKIA|Bearer )", re.IGNORECASE)
_VENDOR_KEY = re.compile(r"\b(?:sk-|pk-|gsk_|hf_|ghp_|github_pat_|xai-|AIza|AKIA)[\w-]{12,}")
SHORT = 8


class Remark(NamedTuple):
    """One line of the report: a setting of the file, and how it was converted."""

    kind: Literal["left out", "note"]
    name: str
    text: str
    place: SettingPath


class LiteLlmDeployment(NamedTuple):
    """One entry of `model_list`: its model, LiteLLM's weights, and the defaults of its requests."""

    target: str
    shares: dict[str, float]
    order: float
    defaults: dict[str, Any]

    def encode(self, weight: float | None = None) -> str | dict[str, Any]:
        """Return it as a target of an alias in slipform.yaml."""
        more = {"weight": weight, "defaults": self.defaults or None}
        fields = {name: value for name, value in more.items() if value is not None}
        return {"model": self.target, **fields} if fields else self.target


@dataclass(slots=True)
class LiteLlmImport:
    """The settings so far, and the remarks on unsupported ones."""

    environment: Mapping[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    providers: dict[str, dict[str, Any]] = field(default_factory=dict)
    prices: dict[str, dict[str, float]] = field(default_factory=dict)
    aliases: dict[str, list[LiteLlmDeployment]] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    """The models of other names."""
    credentials: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)

    def note(self, kind: Literal["left out", "note"], place: SettingPath, text: str, name: str = "") -> None:
        """Add a line to the report; without a name, the setting is called by its place."""
        parts = [str(part) for part in place if isinstance(part, str)]
        inner = parts[1:] if parts[:1] == ["model_list"] and len(parts) > 1 else parts
        self.remarks.append(Remark(kind, name or ".".join(inner), text, place))

    def note_unsupported(self, place: SettingPath, value: Any = True, name: str = "") -> None:
        """Add the table's line for a setting, unless its value is empty; 0 may have a meaning."""
        if value is False or value in (None, "", [], {}):
            return
        key = str(place[-1])
        if key in NOTES:
            self.note("note", place, NOTES[key], name)
        else:
            self.note("left out", place, LEFT_OUT.get(key, "slipform has no such setting"), name)


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_number(value: Any) -> float | None:
    """Return a number that is not negative, also one that is written as text.

    >>> as_number("60"), as_number(True), as_number("-1")
    (60, None, None)
    """
    number = -1.0
    if not isinstance(value, bool):
        with suppress(TypeError, ValueError):
            number = float(value)
    if not 0 <= number < float("inf"):
        return None
    return int(number) if number.is_integer() else number


def _count(value: Any, scale: int = 1, least: int = 1, most: float = float("inf")) -> int | None:
    number = (as_number(value) or 0) * scale
    return int(number) if least <= number <= most else None


def variable_of(text: str) -> str | None:
    """Return the environment variable that a text of LiteLLM's refers to.

    >>> variable_of("os.environ/OPENAI_API_KEY"), variable_of("${KEY}"), variable_of("sk-1")
    ('OPENAI_API_KEY', 'KEY', None)
    """
    match = _REFERENCE.fullmatch(text.strip())
    return next(filter(None, match.groups())) if match else None


def literal(text: str) -> str:
    """Return a text escaped for slipform.yaml."""
    return text.replace("${", "$${")


def reference(value: Any, default: str) -> str:
    """Return a value for slipform.yaml: a variable with its default, or an escaped text."""
    variable = variable_of(str(value))
    return literal(str(value)) if variable is None else f"${{{variable}:-{default}}}"


def put(settings: dict[str, Any], path: str, value: Any) -> None:
    """Set `section.name` of the settings."""
    section, _, name = path.rpartition(".")
    (settings.setdefault(section, {}) if section else settings)[name] = value


def is_placeholder(text: str) -> bool:
    """Return whether a text is a placeholder for a server that needs no key."""
    return not text.strip() or text.strip().lower() in NAMES["placeholders"]


def is_secret(name: str, value: Any) -> bool:
    """Return whether a value may be a secret, by its name or its prefix."""
    if not isinstance(value, str) or is_placeholder(value):
        return False
    return bool(_SECRET_VALUE.search(value)) or (bool(SECRET_NAME.search(name)) and len(value) >= SHORT)


def mask(text: str) -> tuple[str, int]:
    """Return a text without parts that look like vendors' keys, and their number.

    >>> mask("host: sk-proj-0123456789abcdef")
    ('host: NOT-COPIED', 1)
    """
    return _VENDOR_KEY.subn("NOT-COPIED", text)


def _days(value: Any) -> int | None:
    days = re.fullmatch(r"(\d+)d", str(value))
    return int(days[1]) or None if days else None


READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "positive": lambda value: as_number(value) or None,
    "count": _count,
    "limit": lambda value: max(1, int(as_number(value) or 1)),
    "megabytes": lambda value: _count(value, scale=1024 * 1024, least=1024),
    "processes": lambda value: _count(value, most=256),
    "days": _days,
    "flag": lambda value: value is True or None,
    "strategy": lambda value: None if value == "simple-shuffle" else value,
    "text": lambda value: value,
    "ignored": lambda _: None,
}
_IS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "a number": lambda value: as_number(value) is not None,
    "a number above 0": lambda value: bool(as_number(value)),
    "true or false": lambda value: isinstance(value, bool),
    "a text": lambda value: isinstance(value, str),
    "a map": lambda value: isinstance(value, Mapping),
    "a list": lambda value: isinstance(value, list),
    "a list or a text": lambda value: isinstance(value, list | str),
    "a list, a map or a text": lambda value: isinstance(value, list | Mapping | str),
}


def typed_fields(state: LiteLlmImport, fields: Mapping[str, Any], place: SettingPath) -> dict[str, Any]:
    """Return the fields without those whose value has another type; each of these gets a line."""
    typed = {}
    for name, value in fields.items():
        kind = KIND_OF.get(str(name))
        if kind is None or value is None or value == "" or _IS[kind](value):
            typed[str(name)] = value
        else:
            state.note("left out", (*place, str(name)), f"it should be {kind}")
    return typed
