"""Represent requested formats: `JsonSchemaSpec`, `ResponseFormat`, `OutputStrategy`, and valid names."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, overload

import orjson

from slipform.errors import ConfigError
from slipform.schema.limits import is_light_text, json_text
from slipform.schema.strict import strict_preflight

_STRANGE = re.compile(r"[^a-zA-Z0-9_-]+")
_LONGEST = 64


def fit_name(name: str) -> str:
    """Return the nearest name that vendors accept; a long one is cut and gets a hash.

    >>> fit_name("My answer!"), fit_name("")
    ('My_answer', 'answer')
    """
    plain = _STRANGE.sub("_", name).strip("_") or "answer"
    if len(plain) <= _LONGEST:
        return plain
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[: _LONGEST - 9]}_{mark}"


def name_of(shape: Any) -> str:
    """Return a name for a Python type.

    >>> name_of(list[int]), name_of(int | None), name_of(Literal["a", "b"])
    ('list_of_int', 'int_or_None', 'a_or_b')
    """
    return fit_name(_type_name(shape))


def _type_name(shape: Any) -> str:
    """Return a readable name for a Python type, its arguments included."""
    origin = get_origin(shape)
    arguments = get_args(shape)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin in {Union, types.UnionType}:
        return "_or_".join(map(_type_name, arguments))
    if origin is Literal:
        return "_or_".join(str(value.value if isinstance(value, Enum) else value) for value in arguments)
    if origin is dict:
        return f"dict_of_{_type_name(arguments[1])}"
    if isinstance(origin, type) and arguments:
        members = "_".join(_type_name(argument) for argument in arguments if argument is not Ellipsis)
        return f"{origin.__name__}_of_{members}"
    if shape is None or shape is type(None):
        return "None"
    return str(getattr(shape, "__name__", "answer"))


@dataclass(frozen=True, slots=True)
class JsonSchemaSpec:
    """A named JSON Schema. Obvious mistakes are refused here, before the first call.

    >>> JsonSchemaSpec("user", {"type": "object"}).name
    'user'
    """

    name: str
    schema: Mapping[str, Any]
    text: bytes | None = field(default=None, init=False, compare=False, repr=False)
    """The JSON text that the schema was read from, if nothing else can change the schema."""
    is_typed: bool = field(default=False, init=False, compare=False, repr=False)
    """Whether it belongs to a Python type, which ignores other keys than its own."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ConfigError("JsonSchemaSpec: name must be non-empty")
        if not isinstance(self.schema, Mapping):
            raise ConfigError("JsonSchemaSpec: schema must be a JSON object at the top level")

    @property
    def is_light(self) -> bool:
        """Whether it is known to be short and plain enough for an event loop."""
        return self.text is not None and is_light_text(self.text)

    def to_dict(self) -> dict[str, Any]:
        """Return the serialised form, `{"name": …, "schema": …}`."""
        return {"name": self.name, "schema": self.schema}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> JsonSchemaSpec:
        """Read the serialised form back; its name and schema are validated when they are encoded.

        Raises `ConfigError` where one is missing.
        """
        for key in ("name", "schema"):
            if key not in data:
                raise ConfigError(f"JsonSchemaSpec: `{key}` is missing", where=key)
        spec = object.__new__(cls)
        object.__setattr__(spec, "name", data["name"])
        object.__setattr__(spec, "schema", data["schema"])
        object.__setattr__(spec, "text", None)
        object.__setattr__(spec, "is_typed", False)
        return spec

    @classmethod
    def from_text(cls, name: str, text: bytes) -> JsonSchemaSpec:
        """Return a spec that owns its schema, so that results can be cached by its text."""
        spec = cls(name, orjson.loads(text))
        object.__setattr__(spec, "text", text)
        return spec

    def part(self, number: int, schema: Mapping[str, Any]) -> JsonSchemaSpec:
        """Return a spec of a part of this one's schema.

        >>> JsonSchemaSpec("user", {}).part(2, {"type": "object"}).name
        'user_part_2'
        """
        spec = self.from_text(f"{self.name[:54]}_part_{number}", json_text(schema))
        object.__setattr__(spec, "is_typed", self.is_typed)
        return spec


class OutputStrategy(StrEnum):
    """How the model is made to follow the schema."""

    AUTO = "auto"
    """Chosen by the codec when it encodes: the same request resolves to the same strategy on replay."""
    NATIVE = "native"
    """The vendor's own structured-output channel."""
    TOOL = "tool"
    """One forced tool call whose input schema is the target schema."""
    PROMPTED = "prompted"
    """The schema in the system prompt; the answer is extracted, repaired and validated."""


class _Strict:
    """The type of `ResponseFormat.strict`: a constructor on the class, a flag on an instance."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type) -> Callable[[JsonSchemaSpec], ResponseFormat]: ...
        @overload
        def __get__(self, instance: object, owner: type) -> bool: ...
        def __get__(self, instance: object | None, owner: type) -> object: ...
        def __set__(self, instance: object, value: bool) -> None: ...


@dataclass(frozen=True)
class ResponseFormat:
    """A requested shape, and how to request it.

    `strict` asks for the vendor's strict mode where there is one; it says nothing about what happens on failure.
    `ResponseFormat.strict(spec)` and `ResponseFormat.best_effort(spec)` build one.

    >>> spec = JsonSchemaSpec("user", {"type": "object"})
    >>> ResponseFormat.best_effort(spec).with_strategy(OutputStrategy.TOOL).strategy.value
    'tool'
    """

    json_schema: JsonSchemaSpec
    if TYPE_CHECKING:
        strict: _Strict = _Strict()
    else:
        strict: bool = True
    strategy: OutputStrategy = OutputStrategy.AUTO

    @classmethod
    def best_effort(cls, spec: JsonSchemaSpec) -> ResponseFormat:
        """Return a format that does not request the vendor's strict mode."""
        return cls(spec, strict=False)

    def __post_init__(self) -> None:
        if type(self.strategy) is not OutputStrategy:  # its name is sufficient
            try:
                object.__setattr__(self, "strategy", OutputStrategy(self.strategy))
            except ValueError:
                names = ", ".join(OutputStrategy)
                raise ConfigError(
                    f"Unknown strategy {self.strategy!r}", where="strategy", hint=f"The strategies are: {names}."
                ) from None

    def with_strategy(self, strategy: OutputStrategy | str) -> ResponseFormat:
        """Return a copy with this strategy, which takes precedence over the codec's choice."""
        return dataclasses.replace(self, strategy=strategy)  # type: ignore[arg-type]  # read by `__post_init__`

    def strict_preflight(self) -> None:
        """Raise for the first violation of the vendors' strict-mode rules; does nothing when not strict."""
        if self.strict:
            strict_preflight(self.json_schema.schema)

    def to_dict(self) -> dict[str, Any]:
        """Return the serialised form."""
        return {
            "json_schema": self.json_schema.to_dict(),
            "strict": self.strict,
            "strategy": self.strategy.value,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ResponseFormat:
        """Read the serialised form back; `strict` is true and `strategy` auto when absent.

        Raises `ConfigError` for a missing schema and for a strategy that does not exist.
        """
        if "json_schema" not in data:
            raise ConfigError("ResponseFormat: `json_schema` is missing", where="json_schema")
        spec = JsonSchemaSpec.from_dict(data["json_schema"])
        return cls(spec, strict=data.get("strict", True), strategy=data.get("strategy", OutputStrategy.AUTO))


def _strict(cls: type[ResponseFormat], spec: JsonSchemaSpec) -> ResponseFormat:
    """Return a format that requests the vendor's strict mode."""
    return cls(spec, strict=True)


# The design document names both a field and a constructor `strict`. A class method is not a data descriptor, so an
# instance's own value wins over it: `ResponseFormat.strict(spec)` builds, `response_format.strict` is the flag.
type.__setattr__(ResponseFormat, "strict", classmethod(_strict))
