"""List the vendors as data; read and check their rows."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import functools
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from importlib import resources
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from slipform.codecs import Capabilities, codec_names
from slipform.codecs.batches import BATCH_APIS
from slipform.codecs.request_fields import QUIRKS
from slipform.errors import ConfigError
from slipform.schema import OutputStrategy
from slipform.schema.lowering.dialects import OpenObjects, dialect_names

_AUTH_WORDS: Final = ("bearer", "query", "sigv4", "google", "none")
_HEADER_NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)+")
_INHERITED = ("native", "tools", "forced_tool", "sampling", "reasoning")
_EMPTY: Mapping[str, Any] = MappingProxyType({})
_WILD = re.compile(r"\[[^]]*\]|[*?]")
_PLATFORM_PREFIX = re.compile(r"^(?:(?:us|eu|apac|au|jp|global|us-gov)\.)?(?:[a-z0-9-]+\.(?=[a-z]))?")
_PLATFORM_SUFFIX = re.compile(r"(?:-v\d+(?::\d+)?|:[a-z0-9]+|@.*)$")


@dataclass(frozen=True, slots=True)
class UrlField:
    """A placeholder in a base URL, such as a region: filled from the settings, else the environment, else `default`."""

    env: tuple[str, ...] = ()
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Pattern:
    """The capabilities of some models: `values` are fields of `Capabilities` that override those of the vendor.

    Its quirks are added to those of the vendor; `-name` removes one.
    """

    globs: tuple[str, ...]
    values: Mapping[str, Any]
    like: Vendor | None = None
    """A vendor that this one resells: its own row for the model is applied first."""

    def changed_quirks(self, quirks: frozenset[str]) -> frozenset[str]:
        """Return the quirks of the vendor with those of the pattern.

        >>> sorted(Pattern(("*",), {"quirks": {"top_k", "-no_strict"}}).changed_quirks(frozenset({"no_strict"})))
        ['top_k']
        """
        changes: frozenset[str] = frozenset(self.values.get("quirks", ()))
        removed = frozenset([change[1:] for change in changes if change.startswith("-")])
        return (quirks | {change for change in changes if not change.startswith("-")}) - removed

    def specificity(self, model: str) -> int:
        """Return how many literal characters the closest matching glob has; -1 if none matches."""
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
    auth: str = "bearer"
    """How the key is sent: `bearer`, `query`, `sigv4`, `google`, `none`, or the name of a header."""
    base_url_env: tuple[str, ...] = ()
    fields: Mapping[str, UrlField] = field(default_factory=dict)
    api_key_env: tuple[str, ...] = ()
    key: Literal["required", "optional"] = "required"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers of every call; hidden in the repr, because users put keys in them."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Capabilities` for all models."""
    patterns: tuple[Pattern, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Capabilities` for all models, which patterns cannot change."""
    models: tuple[str, ...] = ()
    """The models it serves; empty if it accepts any name."""
    own: tuple[str, ...] = ()
    """Globs for the names of its own models, by which a name without a provider is recognised."""
    price_list: str = ""
    """Its id in the price list that ships with slipform (genai-prices); empty if it is not listed."""
    batch: str = ""
    """The name of its batch API in `codecs.batches`; empty if slipform supports none."""
    source: str = ""
    checked: str = ""

    def capabilities(self, model: str) -> Capabilities:
        """Return what this model can do: the vendor's values, overridden by each matching pattern, the closest last."""
        values = dict(self.values)
        lowered = model.lower()
        ranked = [(pattern.specificity(lowered), order, pattern) for order, pattern in enumerate(self.patterns)]
        for specificity, _, pattern in sorted(ranked, key=lambda item: item[:2]):
            if specificity < 0:
                continue
            if pattern.like is not None:
                family = pattern.like.capabilities(bare_name(lowered))
                values.update({name: getattr(family, name) for name in _INHERITED})
            values.update({**pattern.values, "quirks": pattern.changed_quirks(values.get("quirks", frozenset()))})
        values.update(self.overrides)
        return Capabilities(**values)

    def setup_hint(self) -> str:
        """Return the steps that make the vendor usable, for hints.

        >>> load_catalog().vendor("groq").setup_hint()
        'set GROQ_API_KEY'
        """
        if self.key == "optional":
            return f"it needs no key: add `providers: {{{self.name}: {{}}}}` to slipform.yaml"
        if self.api_key_env:
            return f"set {' or '.join(self.api_key_env)}"
        return f"configure `providers.{self.name}`"

    def url(self, base_url: str | None = None, settings: Mapping[str, str] = _EMPTY) -> str:
        """Return the base URL: the given one, else the environment's, else the row's own with its placeholders filled.

        >>> load_catalog().vendor("azure").url(settings={"resource": "acme"})
        'https://acme.openai.azure.com/openai/v1'
        """
        template = base_url or next(filter(None, map(os.environ.get, self.base_url_env)), self.base_url)
        if "://" not in template and not template.startswith("{"):
            template = f"http://{template}"
        return self._fill(template, settings).rstrip("/")

    def region(self, settings: Mapping[str, str] = _EMPTY) -> str:
        """Return the region to sign for; rows that sign have a `region` field."""
        return self._fill("{region}", settings)

    def _fill(self, template: str, settings: Mapping[str, str]) -> str:
        if "{" not in template:
            return template
        return re.sub(r"\{(\w+)\}", lambda match: self._placeholder_value(match[1], settings), template)

    def _placeholder_value(self, name: str, settings: Mapping[str, str]) -> str:
        blank = self.fields.get(name, UrlField())
        value = settings.get(name) or next((os.environ[key] for key in blank.env if os.environ.get(key)), blank.default)
        if value is None:
            alternative = ""
            if blank.env:
                alternative = f" or the environment variable {' or '.join(blank.env)}"
            raise ConfigError(
                f"The provider {self.name!r} needs to know its {name}",
                where=f"providers.{self.name}.{name}",
                hint=f"Set `{name}`{alternative}.",
            )
        return value.rstrip("/")


@dataclass(frozen=True, slots=True)
class Catalog:
    """All known vendors by name."""

    vendors: Mapping[str, Vendor]

    def vendor(self, name: str) -> Vendor:
        """Return the row of that name; raises a `ConfigError` that lists the nearest names."""
        vendor = self.vendors.get(name)
        if vendor is not None:
            return vendor
        near = difflib.get_close_matches(name, list(self.vendors), n=3)
        hint = f"Did you mean {', '.join(near)}?" if near else f"The vendors are: {', '.join(sorted(self.vendors))}."
        raise ConfigError(f"Unknown vendor {name!r}", where=f"providers.{name}", hint=hint)

    def maker_of(self, model: str) -> Vendor | None:
        """Return the vendor whose own model has this name, if its row says so.

        >>> load_catalog().maker_of("claude-opus-5-5").name
        'anthropic'
        """
        name = model.lower()
        return next((each for each in self.vendors.values() if any(_glob(glob)(name) for glob in each.own)), None)


def load_catalog(rows: Mapping[str, Mapping[str, Any]] | None = None) -> Catalog:
    """Return slipform's catalogue, with the caller's rows added or merged into those of the same name.

    A row may name another to start from (`extends`); a new one without it starts from `openai-compatible`. Every
    mistake is a `ConfigError` that names the row and the field.

    >>> load_catalog({"mine": {"base_url": "http://gpu:8000/v1", "extends": "vllm"}}).vendor("mine").codec
    'openai-chat'
    """
    builtin = _builtin()
    if not rows:
        return builtin
    vendors = dict(builtin.vendors)
    for name, row in rows.items():
        vendors[name] = read_row(name, row, vendors, template=builtin.vendors["openai-compatible"])
    return Catalog(MappingProxyType(vendors))


@functools.cache
def _builtin() -> Catalog:
    text = resources.files("slipform.providers").joinpath("catalog.toml").read_text("utf-8")
    try:
        rows = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:  # only an editor reads this
        raise ConfigError(f"The catalogue cannot be read: {error}", where="catalog.toml") from error
    vendors: dict[str, Vendor] = {}
    # A row may be `like` a later one, so the rows without `like` are read first.
    for name in sorted(rows, key=lambda name: any("like" in pattern for pattern in rows[name].get("patterns", ()))):
        vendors[name] = read_row(name, rows[name], vendors)
    return Catalog(MappingProxyType({name: vendors[name] for name in rows}))


def bare_name(model: str) -> str:
    """Return a model's own name, without a platform's prefixes and suffixes.

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


_BLANK = Vendor(name="", title="", base_url="", codec="")


def read_row(name: str, row: object, vendors: Mapping[str, Vendor], template: Vendor = _BLANK) -> Vendor:
    """Return a checked row.

    It starts from the row it `extends`, else from the one of its own name, else the template.
    """
    where = f"providers.{name}"
    if not name or "/" in name:
        raise ConfigError(f"{name!r} is not a name for a provider", where=where, hint="Use a name without `/`.")
    fields = dict(_mapping(row, where))
    extends = fields.pop("extends", None)
    base = (
        vendors.get(name, template) if extends is None else _vendor_name(extends, f"{where}.kind", vendors)
    )  # the setting's name
    changes: dict[str, Any] = {"name": name, "own": ()}
    if "base_url" in fields:
        changes["base_url_env"] = ()  # an address in the settings takes precedence over one in the environment
    if base is template:
        changes["api_key_env"] = ()  # the template's key belongs to the template's address
    for key, value in fields.items():
        reader = _READERS.get(key)
        if reader is None:
            raise _unknown_name_error(key, _READERS, f"{where}.{key}")
        changes.update(reader(value, f"{where}.{key}", base, vendors))
    vendor = dataclasses.replace(base, **changes)
    if not vendor.base_url or not vendor.codec:
        raise ConfigError("A row needs `base_url` and `codec`", where=where)
    return vendor


def _vendor_name(value: object, where: str, vendors: Mapping[str, Vendor]) -> Vendor:
    name = _text(value, where)
    if name not in vendors:
        raise _unknown_name_error(name, vendors, where, what="vendor")
    return vendors[name]


Reader = Callable[[object, str, Vendor, Mapping[str, Vendor]], dict[str, Any]]


def _capabilities(value: object, where: str, base: Vendor, _: Mapping[str, Vendor]) -> dict[str, Any]:
    return {"values": MappingProxyType({**base.values, **_values(value, where)})}


def _overrides(value: object, where: str, base: Vendor, _: Mapping[str, Vendor]) -> dict[str, Any]:
    overrides = _values(value, where.replace(".overrides", ".capabilities"))  # the setting's name
    return {"overrides": MappingProxyType({**base.overrides, **overrides})}


def _patterns(value: object, where: str, base: Vendor, vendors: Mapping[str, Vendor]) -> dict[str, Any]:
    if not isinstance(value, list | tuple):
        raise _type_error(value, "a list of patterns", where)
    # Of equal specificity, later patterns win, so the added ones go last.
    return {"patterns": (*base.patterns, *(_pattern(item, f"{where}[{i}]", vendors) for i, item in enumerate(value)))}


def _pattern(value: object, where: str, vendors: Mapping[str, Vendor]) -> Pattern:
    fields = dict(_mapping(value, where))
    if "match" not in fields:
        raise ConfigError("A pattern needs `match`", where=where, hint='For example match = "gpt-5*".')
    globs = _texts(fields.pop("match"), f"{where}.match")
    like = fields.pop("like", None)
    return Pattern(
        globs,
        MappingProxyType(_values(fields, where, changes_quirks=True)),
        like=None if like is None else _vendor_name(like, f"{where}.like", vendors),
    )


def _fields(value: object, where: str, base: Vendor, _: Mapping[str, Vendor]) -> dict[str, Any]:
    read = {}
    for name, item in _mapping(value, where).items():
        inner = f"{where}.{name}"
        parts = dict(_mapping(item, inner))
        env = _texts(parts.pop("env", ()), f"{inner}.env")
        default = parts.pop("default", None)
        for extra in parts:
            raise _unknown_name_error(extra, ("env", "default"), f"{inner}.{extra}")
        read[name] = UrlField(env, None if default is None else _text(default, f"{inner}.default"))
    return {"fields": MappingProxyType({**base.fields, **read})}


_FLAGS = frozenset({"native", "tools", "forced_tool", "json_mode", "sampling", "reasoning"})
_CAPABILITY_NAMES = tuple(spec.name for spec in dataclasses.fields(Capabilities))


def _values(value: object, where: str, *, changes_quirks: bool = False) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for name, item in _mapping(value, where).items():
        inner = f"{where}.{name}"
        if name not in _CAPABILITY_NAMES:
            raise _unknown_name_error(name, _CAPABILITY_NAMES, inner)
        if name in _FLAGS:
            if not isinstance(item, bool):
                raise _type_error(item, "true or false", inner)
            read[name] = item
        elif name == "quirks":
            read[name] = frozenset(_texts(item, inner))
            names = {quirk.removeprefix("-") if changes_quirks else quirk for quirk in read[name]}
            for quirk in sorted(names - QUIRKS.keys()):
                raise _unknown_name_error(quirk, QUIRKS, inner, what="quirk")
        elif name == "max_tokens_field" and item is None:
            read[name] = None
        elif name == "open_objects":
            read[name] = _choice(get_args(OpenObjects))(item, inner)
        elif name == "strategy":
            read[name] = OutputStrategy(_choice(tuple(OutputStrategy))(item, inner))
        else:
            read[name] = _text(item, inner)
            if name.endswith("dialect") and item not in (dialects := dialect_names(aliases=True)):
                raise _unknown_name_error(str(item), dialects, inner, what="dialect")
    return read


def _choice(options: tuple[str, ...]) -> Callable[[object, str], str]:
    def read(value: object, where: str) -> str:
        text = _text(value, where)
        if text not in options:
            raise _type_error(value, f"one of {', '.join(options)}", where)
        return text

    return read


def _auth(value: object, where: str) -> str:
    text = _text(value, where).lower()
    if text not in _AUTH_WORDS and not _HEADER_NAME.fullmatch(text):
        words = ", ".join(_AUTH_WORDS)
        raise _type_error(value, f"one of {words}, or the name of a header, such as x-api-key", where)
    return text


def _codec(value: object, where: str) -> str:
    name = _text(value, where)
    if name not in codec_names():
        raise _unknown_name_error(name, codec_names(), where, what="codec")
    return name


def _batch(value: object, where: str) -> str:
    name = _choice((*BATCH_APIS, "none"))(value, where)
    return "" if name == "none" else name


def _strings(value: object, where: str) -> Mapping[str, str]:
    return MappingProxyType({key: _text(item, f"{where}.{key}") for key, item in _mapping(value, where).items()})


def _checked(value: object, where: str) -> str:
    if isinstance(value, date):
        return value.isoformat()
    return _text(value, where)


def _plain(name: str, read: Callable[[object, str], Any]) -> Reader:
    def reader(value: object, where: str, _: Vendor, __: Mapping[str, Vendor]) -> dict[str, Any]:
        return {name: read(value, where)}

    return reader


def _merged_headers(value: object, where: str, base: Vendor, _: Mapping[str, Vendor]) -> dict[str, Any]:
    return {"headers": MappingProxyType({**base.headers, **_strings(value, where)})}


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _type_error(value, "a table of names and values", where)
    for key in value:
        if not isinstance(key, str):
            raise _type_error(key, "a name", where)
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise _type_error(value, "a text that is not empty", where)
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    """Return one text, or a list of them, as a tuple."""
    if isinstance(value, str):
        return (_text(value, where),)
    if not isinstance(value, list | tuple | set | frozenset):
        raise _type_error(value, "a text or a list of texts", where)
    return tuple(_text(item, f"{where}[{index}]") for index, item in enumerate(value))


def _type_error(value: object, expected: str, where: str) -> ConfigError:
    # The value itself is not shown: a key pasted into the wrong field would end up in a log.
    return ConfigError(f"Expected {expected}, found {type(value).__name__}", where=where)


def _unknown_name_error(name: str, options: Any, where: str, what: str = "field") -> ConfigError:
    near = difflib.get_close_matches(name, sorted(options), n=3)
    hint = f"Did you mean {', '.join(near)}?" if near else f"Known are: {', '.join(sorted(options))}."
    return ConfigError(f"Unknown {what} {name!r}", where=where, hint=hint)


_READERS: Mapping[str, Reader] = {
    "title": _plain("title", _text),
    "base_url": _plain("base_url", _text),
    "base_url_env": _plain("base_url_env", _texts),
    "fields": _fields,
    "api_key_env": _plain("api_key_env", _texts),
    "key": _plain("key", _choice(("required", "optional"))),
    "auth": _plain("auth", _auth),
    "headers": _merged_headers,
    "codec": _plain("codec", _codec),
    "capabilities": _capabilities,
    "overrides": _overrides,
    "patterns": _patterns,
    "models": _plain("models", _texts),
    "own": _plain("own", _texts),
    "price_list": _plain("price_list", _text),
    "batch": _plain("batch", _batch),
    "source": _plain("source", _text),
    "checked": _plain("checked", _checked),
}
