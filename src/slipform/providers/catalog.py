"""The catalogue: vendors as data. `catalog.toml` holds slipform's own rows; users add and override rows."""

from __future__ import annotations

import difflib
import fnmatch
import functools
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from slipform.codecs.base import Capabilities
from slipform.errors import ConfigError

Auth: TypeAlias = Literal["bearer", "x-api-key", "api-key", "x-goog-api-key", "query", "sigv4", "none"]

_INHERITED = ("native", "tools", "forced_tool", "sampling", "reasoning")
_EMPTY: Mapping[str, Any] = MappingProxyType({})
_WILD = re.compile(r"\[[^]]*\]|[*?]")
_PLATFORM_PREFIX = re.compile(r"^(?:(?:us|eu|apac|au|jp|global|us-gov)\.)?(?:[a-z0-9-]+\.(?=[a-z]))?")
_PLATFORM_SUFFIX = re.compile(r"(?:-v\d+(?::\d+)?|:[a-z0-9]+|@.*)$")


@dataclass(frozen=True, slots=True)
class Field:
    """A blank in a base URL, such as a region: filled from the settings, else the environment, else `default`."""

    env: tuple[str, ...] = ()
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Pattern:
    """What some models can do: `values` are fields of `Capabilities`, laid over those of the vendor."""

    globs: tuple[str, ...]
    values: Mapping[str, Any]
    like: Vendor | None = None
    """A vendor whose own row for the model is taken first, when this one only resells it."""

    def specificity(self, model: str) -> int:
        """How many characters the closest matching glob spells out; -1 when none matches."""
        return max((_literal(glob) for glob in self.globs if _glob(glob)(model)), default=-1)


@dataclass(frozen=True, slots=True)
class Vendor:
    """One row of the catalogue.

    >>> load_catalog().vendor("anthropic").capabilities("claude-opus-5-5").forced_tool
    False
    """

    name: str
    title: str
    base_url: str
    codec: str
    auth: Auth = "bearer"
    base_url_env: tuple[str, ...] = ()
    fields: Mapping[str, Field] = field(default_factory=dict)
    api_key_env: tuple[str, ...] = ()
    key: Literal["required", "optional"] = "required"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every call; not shown, since users put keys in them."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Capabilities` that hold for all models."""
    patterns: tuple[Pattern, ...] = ()
    models: tuple[str, ...] = ()
    """The models it serves; empty when any name goes."""
    source: str = ""
    checked: str = ""

    def capabilities(self, model: str) -> Capabilities:
        """What this model can do here: the vendor's values, overlaid by each matching pattern, closest last."""
        values = dict(self.values)
        lowered = model.lower()
        ranked = [(pattern.specificity(lowered), order, pattern) for order, pattern in enumerate(self.patterns)]
        for specificity, _, pattern in sorted(ranked, key=lambda item: item[:2]):
            if specificity < 0:
                continue
            if pattern.like is not None:
                family = pattern.like.capabilities(bare_name(lowered))
                values.update({name: getattr(family, name) for name in _INHERITED})
            values.update(pattern.values)
        return Capabilities(**values)

    def url(self, base_url: str | None = None, settings: Mapping[str, str] = _EMPTY) -> str:
        """The base URL: the one given, else from the environment, else the row's own with its blanks filled.

        >>> load_catalog().vendor("azure").url(settings={"resource": "acme"})
        'https://acme.openai.azure.com/openai/v1'
        """
        template = base_url or next(filter(None, map(os.environ.get, self.base_url_env)), self.base_url)
        if "://" not in template and not template.startswith("{"):
            template = f"http://{template}"
        return self._fill(template, settings).rstrip("/")

    def region(self, settings: Mapping[str, str] = _EMPTY) -> str:
        """The region to sign for; rows that sign have a `region` field."""
        return self._fill("{region}", settings)

    def _fill(self, template: str, settings: Mapping[str, str]) -> str:
        if "{" not in template:
            return template
        return re.sub(r"\{(\w+)\}", lambda found: self._blank(found[1], settings), template)

    def _blank(self, name: str, settings: Mapping[str, str]) -> str:
        blank = self.fields.get(name, Field())
        given = settings.get(name) or next((os.environ[key] for key in blank.env if os.environ.get(key)), blank.default)
        if given is None:
            asked = f" or the environment variable {' or '.join(blank.env)}" if blank.env else ""
            raise ConfigError(
                f"The provider {self.name!r} needs to know its {name}",
                where=f"providers.{self.name}.{name}",
                hint=f"Set `{name}`{asked}.",
            )
        return given.rstrip("/")


@dataclass(frozen=True, slots=True)
class Catalog:
    """All known vendors by name."""

    vendors: Mapping[str, Vendor]

    def vendor(self, name: str) -> Vendor:
        """The row of that name; a `ConfigError` lists the nearest names."""
        found = self.vendors.get(name)
        if found is not None:
            return found
        near = difflib.get_close_matches(name, list(self.vendors), n=3)
        hint = f"Did you mean {', '.join(near)}?" if near else f"The vendors are: {', '.join(sorted(self.vendors))}."
        raise ConfigError(f"Unknown vendor {name!r}", where=f"providers.{name}", hint=hint)


def load_catalog(rows: Mapping[str, Mapping[str, Any]] | None = None) -> Catalog:
    """The catalogue that comes with slipform, with the caller's rows added and laid over those of the same name.

    A row may name another to start from (`extends`); a new one without it starts from `openai-compatible`. Every
    mistake is a `ConfigError` that names the row and the field.

    >>> load_catalog({"mine": {"base_url": "http://gpu:8000/v1", "extends": "vllm"}}).vendor("mine").codec
    'openai-chat'
    """
    from slipform.providers.rows import read_row

    builtin = _builtin()
    if not rows:
        return builtin
    vendors = dict(builtin.vendors)
    for name, row in rows.items():
        vendors[name] = read_row(name, row, vendors, template=builtin.vendors["openai-compatible"])
    return Catalog(MappingProxyType(vendors))


@functools.cache
def _builtin() -> Catalog:
    from slipform.providers.rows import read_row

    text = resources.files("slipform.providers").joinpath("catalog.toml").read_text("utf-8")
    rows = tomllib.loads(text)
    vendors: dict[str, Vendor] = {}
    # A row may be `like` one further down, so the ones that are like nobody are read first.
    for name in sorted(rows, key=lambda name: any("like" in pattern for pattern in rows[name].get("patterns", ()))):
        vendors[name] = read_row(name, rows[name], vendors)
    return Catalog(MappingProxyType({name: vendors[name] for name in rows}))


def bare_name(model: str) -> str:
    """A model's own name, without what a platform puts around it.

    >>> bare_name("us.anthropic.claude-opus-4-5-20251101-v1:0"), bare_name("openai/gpt-5:free")
    ('claude-opus-4-5-20251101', 'gpt-5')
    """
    name = _PLATFORM_PREFIX.sub("", model.rsplit("/", 1)[-1])
    return _PLATFORM_SUFFIX.sub("", name)


@functools.lru_cache(maxsize=1024)
def _literal(glob: str) -> int:
    return len(_WILD.sub("", glob))


@functools.lru_cache(maxsize=1024)
def _glob(glob: str) -> Any:
    return re.compile(fnmatch.translate(glob.lower())).match
