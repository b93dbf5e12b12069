"""Define a vendor's dialect, the keywords, limits and notations its channel takes: `Dialect`."""

from __future__ import annotations

import datetime as dt
import difflib
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from slipform.errors import ConfigError

OpenObjects: TypeAlias = Literal["auto", "kept", "closed"]
"""Whether other keys of objects whose schema does not mention them have a place in the vendor's shape: `auto` gives
them one in objects that do not require all of their properties, up to `MAX_OPENED`."""
MAX_OPENED = 16
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The rules of one structured-output channel; `dialects.toml` explains each setting.

    >>> dialect("openai").limits["depth"]
    10
    """

    name: str
    source: str
    date: dt.date
    mode: Literal["lower", "pass"] = "lower"
    root: Literal["any", "object"] = "any"
    optional: Literal["null", "native"] = "native"
    additional: Literal["false", "none", "schema"] = "schema"
    free: Literal["json", "native"] = "native"
    refs: Literal["none", "defs", "root"] = "defs"
    recursion: Literal["kept", "optional", "none"] = "kept"
    ref_note: Literal["anyOf", "plain"] = "plain"
    null_enum: Literal["list", "anyOf"] = "list"
    empty_enum: bool = True
    names: str = ""
    first_keys: bool = True
    empty_objects: bool = True
    object_bounds: bool = True
    tuples: Literal["native", "object"] = "native"
    pattern_keys: bool = True
    enum_types: frozenset[str] = frozenset()
    keywords: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    min_items_max: int | None = None
    regex: Literal["any", "plain", "unanchored"] = "any"
    ordering: bool = False
    needs_required: bool = False
    spelling: Literal["json-schema", "openapi"] = "json-schema"
    engine: Literal["vendor", "engine"] = "vendor"
    limits: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def fit_name(self, name: str, taken: Collection[str]) -> str:
        """Return a property's name in the dialect's alphabet that is not taken yet.

        >>> dialect("anthropic").fit_name("two words", ())
        'two_words'
        """
        if not self.names or re.fullmatch(self.names, name):
            return name
        base = _NOT_IN_A_NAME.sub("_", name).strip("_")[:50] or "property"
        fitting = base
        count = 1
        while fitting in taken:
            count += 1
            fitting = f"{base}_{count}"
        return fitting

    @property
    def closes(self) -> bool:
        """Whether objects cannot have keys other than those listed."""
        return self.additional != "schema"


def dialect(name: str) -> Dialect:
    """Return the dialect of that name or alias; raises `ConfigError` with the nearest names for an unknown one."""
    rows = _rows()
    matching = rows.get(name)
    if matching is None:
        near = difflib.get_close_matches(str(name), rows, n=3, cutoff=0.5)
        nearest = f"The nearest: {', '.join(near)}. " if near else ""
        names = ", ".join(sorted({row.name for row in rows.values()}))
        raise ConfigError(f"Unknown dialect {name!r}", hint=f"{nearest}The dialects are: {names}.")
    return matching


def dialect_names(*, aliases: bool = False) -> tuple[str, ...]:
    """Return the names of all dialects, without their aliases unless asked for."""
    rows = _rows()
    return tuple(sorted(rows if aliases else {row.name for row in rows.values()}))


@lru_cache(maxsize=1)
def _rows() -> Mapping[str, Dialect]:
    tables = tomllib.loads(resources.files("slipform.schema").joinpath("dialects.toml").read_text(encoding="utf-8"))
    rows: dict[str, Dialect] = {}
    for name in tables:
        settings = _settings(tables, name)
        aliases = settings.pop("aliases", [])
        row = Dialect(name=name, **settings)
        rows |= dict.fromkeys([name, *aliases], row)
    return MappingProxyType(rows)


def _settings(tables: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    own = dict(tables[name])
    base = own.pop("base", None)
    settings = own if base is None else {**_settings(tables, base), **own}
    for key in ("enum_types", "keywords", "formats"):
        if key in settings:
            settings[key] = frozenset(settings[key])
    if "limits" in settings:
        settings["limits"] = MappingProxyType(dict(settings["limits"]))
    if base is not None:
        settings["aliases"] = own.get("aliases", [])
    return settings
