"""Build a `Schema` from a Python type or a document, validate values, and convert them to typed objects."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

import msgspec
import orjson
from typing_extensions import TypeForm

from slipform.errors import SchemaError, SchemaViolationError
from slipform.schema.document import join_pointer
from slipform.schema.foreign_types import (
    MsgspecAdapter,
    has_msgspec_rules,
    modern_typed_dicts,
    msgspec_document,
    msgspec_violation,
)
from slipform.schema.limits import MAX_SCHEMA_BYTES, not_json, plain_copy, plainly_json
from slipform.schema.shape import Shape, estimated_bytes, to_text
from slipform.schema.spec import JsonSchemaSpec, ResponseFormat, fit_name, name_of
from slipform.schema.validator import Formats, find_violations, prepare
from slipform.schema.violations import Violation, excerpt_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

T = TypeVar("T")
S = TypeVar("S")  # of `of`, which is called before T is bound


class Schema(Generic[T]):
    """A requested shape: its name, its JSON Schema, and the conversion to a Python object.

    >>> Schema.of(list[int]).validate([1, "2"])[0].json_path
    '$[1]'
    >>> Schema.of(list[int]).name
    'list_of_int'
    """

    __slots__ = (
        "__weakref__",
        "_adapter",
        "_compiled",
        "_is_valid",
        "_response_format",
        "document",
        "fingerprint",
        "name",
        "size",
        "text",
    )

    def __init__(
        self,
        name: str,
        document: Mapping[str, Any],
        adapter: TypeAdapter[T] | MsgspecAdapter[T] | None = None,
        *,
        formats: bool = True,
        resources: Mapping[str, Any] | None = None,
    ) -> None:
        """Compile the schema; raises `SchemaError` for an unusable one.

        `formats` says whether `format` is checked; `resources` are other documents it may refer to, by URI.
        """
        if not isinstance(document, Mapping):
            raise SchemaError("A JSON Schema must be an object at the top level", hint="Wrap it in an object.")
        kind: Formats = "json" if adapter is None else "python"
        if not formats:
            kind = "ignored"
        self.name = name
        self.fingerprint, self._compiled = prepare(document, kind, resources)
        self.document: dict[str, Any] = plain_copy(document)
        """The JSON Schema, in plain dicts and lists and in the order it was given."""
        self.text = to_text(self.document)
        """The document as JSON, the key of its `Shape`."""
        self._response_format: ResponseFormat | None = None
        self._adapter = adapter
        self._is_valid = self._compiled.is_valid
        self.size = self._compiled.size
        """The approximate number of bytes that it retains once it is compiled."""

    @overload
    @classmethod
    def of(cls, shape: Schema[S]) -> Schema[S]: ...
    @overload
    @classmethod
    def of(cls, shape: type[S]) -> Schema[S]: ...
    @overload
    @classmethod
    def of(cls, shape: Mapping[str, Any] | JsonSchemaSpec | ResponseFormat | str) -> Schema[Any]: ...
    @overload
    @classmethod
    def of(cls, shape: TypeForm[S]) -> Schema[S]: ...
    @classmethod
    def of(cls, shape: Any) -> Schema[Any]:
        """Return the schema of a Python type, a JSON Schema (a dict or JSON text), a spec or a response format.

        >>> Schema.of({"type": "integer"}).validate(3)
        []
        """
        if isinstance(shape, type):
            return _of_type(shape, "")
        if isinstance(shape, Schema):
            return shape
        if isinstance(shape, ResponseFormat):
            shape = shape.json_schema
        if isinstance(shape, JsonSchemaSpec):
            return cls(shape.name, shape.schema)
        if isinstance(shape, str):
            shape = _read(shape)
        if isinstance(shape, Mapping):
            return cls(fit_name(str(shape.get("title", ""))), shape)
        if inspect.isroutine(shape):  # pydantic would treat it as a callable
            raise SchemaError(f"No JSON Schema can be made of the function {shape!r:.200}", hint="Give a type.")
        try:
            return _of_type(shape, repr(shape))
        except TypeError:  # an Annotated type may contain unhashable metadata
            return _of_type.__wrapped__(shape, "")

    @property
    def spec(self) -> JsonSchemaSpec:
        """The name and document for a response format."""
        spec = JsonSchemaSpec(self.name, self.document)
        if self._adapter is not None:
            object.__setattr__(spec, "is_typed", True)
        return spec

    @property
    def response_format(self) -> ResponseFormat:
        """The response format that requests strict mode from vendors; the same object each time."""
        if self._response_format is None:
            self._response_format = ResponseFormat.strict(self.spec)
        return self._response_format

    def fits(self, value: Any) -> bool:
        """Return whether a JSON value matches; `validate` returns the violations."""
        try:
            return self._is_valid(value)
        except ValueError:  # not JSON
            return False

    def validate(self, value: Any) -> list[Violation]:
        """Return the violations of a JSON value; empty for a valid one.

        Parts that the schema does not constrain are ignored; `check` includes them.
        """
        if self.fits(value):
            return []
        return find_violations(self._compiled, value)

    def check(self, value: Any) -> list[Violation]:
        """Return the violations of a value, whether or not it is JSON, and the errors of the type's own validators."""
        troubles = [] if plainly_json(value) else list(islice(not_json(value), 100))
        violations = troubles or self.validate(value)
        if violations or self._adapter is None:
            return violations
        try:
            self._adapter.validate_json(_dump(value))
        except ValueError as error:
            return _said_by_type(error, value)
        return []

    def with_document(self, document: Mapping[str, Any]) -> Schema[T]:
        """Return a schema of the same type with this JSON Schema in place of the type's own."""
        return Schema(self.name, document, self._adapter)

    def read(self, value: Any, text: bytes | None) -> tuple[T | None, list[Violation]]:
        """Return the typed object of a valid value, or the errors of its type.

        The result combines `check` and `to_python`.

        For a value that was just parsed and validated; `text` is its JSON where `orjson` could encode it.

        >>> Schema.of(tuple[int, str]).read([1, "a"], b'[1,"a"]')
        ((1, 'a'), [])
        """
        if text is None:
            violations = self.check(value)
            if violations:
                return (None, violations)
            return (self.to_python(value), violations)
        if self._adapter is None:
            plain: Any = value
            return plain, []
        try:
            return self._adapter.validate_json(text), []
        except ValueError as error:
            return None, _said_by_type(error, value)

    def to_python(self, value: Any) -> T:
        """Return the typed object for a JSON value; `SchemaViolationError` when its type refuses it.

        >>> Schema.of(tuple[int, str]).to_python([1, "a"])
        (1, 'a')
        """
        if self._adapter is None:
            return cast("T", value)
        try:
            return self._adapter.validate_json(_dump(value))
        except ValueError as error:
            raise _validation_error(self.name, _said_by_type(error, value)) from error
        except TypeError as error:
            raise _validation_error(self.name, list(islice(not_json(value), 100))) from error

    def __repr__(self) -> str:
        return f"Schema({self.name!r}, {self.document!r:.200})"


@lru_cache(maxsize=512)
def _of_type(shape: Any, _order: str) -> Schema[Any]:
    """Distinguish `A | B` from `B | A` by `_order`: they are equal, but prompt in another order."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError
    from pydantic_core import SchemaError as CoreSchemaError

    if has_msgspec_rules(shape):
        with contextlib.suppress(TypeError, NameError):
            return Schema(name_of(shape), msgspec_document(shape), MsgspecAdapter(shape))
    broken = PydanticUserError, PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, CoreSchemaError, NameError
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(modern_typed_dicts(shape))
        document = adapter.json_schema(schema_generator=_generator())
    except broken as error:
        with contextlib.suppress(TypeError, NameError):
            return Schema(name_of(shape), msgspec_document(shape), MsgspecAdapter(shape))
        reason = " ".join(str(error).split())[:200]
        raise SchemaError(
            f"No JSON Schema can be made of {shape!r:.200}: {reason}",
            hint="Use a pydantic model, dataclass, attrs class, msgspec Struct, TypedDict, enum, Literal, list, dict, "
            "tuple or scalar type; in one type, pydantic's models do not go with attrs classes and msgspec Structs.",
        ) from error
    return Schema(name_of(shape), document, adapter)


@lru_cache(maxsize=1)
def _generator() -> type[GenerateJsonSchema]:
    """Return pydantic's own schemas without its warnings, and without defaults that are not JSON.

    Built when the first type is used: importing pydantic takes a while, and many programs only use JSON Schemas.
    """
    from pydantic.json_schema import GenerateJsonSchema
    from pydantic_core import PydanticSerializationError

    class PlainJsonSchema(GenerateJsonSchema):
        ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 — pydantic's name, type

        def encode_default(self, dft: Any) -> Any:
            encoded = super().encode_default(dft)
            if any(not_json(encoded)):
                raise PydanticSerializationError("not JSON")
            return encoded

    return PlainJsonSchema


def _read(text: str) -> Any:
    if len(text) > MAX_SCHEMA_BYTES:
        raise SchemaError(f"The schema is {len(text):,} characters long; the limit is {MAX_SCHEMA_BYTES:,}")
    try:
        document = json.loads(text, parse_constant=_no_constant)
    except RecursionError as error:
        raise SchemaError("The schema's text is nested too deeply") from error
    except ValueError as error:
        raise SchemaError(f"The schema's text is not JSON: {error}", hint="Give JSON text or a dict.") from error
    if not isinstance(document, Mapping):
        raise SchemaError("A JSON Schema must be an object at the top level", hint="Wrap it in an object.")
    return document


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _dump(value: Any) -> bytes:
    """Validate JSON text, because types read JSON more leniently than objects: lists as tuples, text as dates."""
    try:
        return orjson.dumps(value)
    except TypeError:  # integers beyond 64 bits, lone surrogates; for other errors it raises again
        return json.dumps(value).encode()


def _said_by_type(error: ValueError, value: Any) -> list[Violation]:
    """Return the errors of a type for a value; raises an error of the type that is not about the value again."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return [_violation(problem, value) for problem in error.errors(include_url=False)]
    if isinstance(error, msgspec.ValidationError):
        return [msgspec_violation(error, value)]
    raise error


def _violation(problem: Any, value: Any) -> Violation:
    """Return the steps of pydantic's location that exist in the value; it also names union members and aliases."""
    steps: list[str | int] = []
    for step in problem["loc"]:
        if (isinstance(value, Mapping) and step in value) or (isinstance(value, list) and step in range(len(value))):
            steps.append(step)
            value = value[step]
    message = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return Violation(join_pointer(steps), "", str(problem["type"]), message, None, excerpt_of(value), tuple(steps))


def _validation_error(name: str, violations: list[Violation]) -> SchemaViolationError:
    first = ""
    if violations:
        first = f": {violations[0].json_path}: {violations[0].message}"
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    return SchemaViolationError(
        f"The value is no {name}{first}{more}", details={"violations": [one.to_dict() for one in violations]}
    )


_LONGEST = 1 << 15
_PLAINLY = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS


def cached_format(name: str, document: Any, *, strict: bool) -> ResponseFormat:
    """Return the response format with this name and schema; the same object for the same schema, where it is short.

    >>> cached_format("n", {"type": "integer"}, strict=True) is cached_format("n", {"type": "integer"}, strict=True)
    True
    """
    try:
        text = orjson.dumps(document, option=_PLAINLY)
    except TypeError:  # not plain JSON, but a Python document
        text = b""
    if not text or len(text) > _LONGEST:
        return ResponseFormat(JsonSchemaSpec(name, document), strict=strict)
    return Shape.of_text(text).derived(
        ("format", name, strict),
        lambda: ResponseFormat(JsonSchemaSpec.from_text(name, text), strict=strict),
        lambda _: len(name) + estimated_bytes(text),
    )


def cached_schema(spec: JsonSchemaSpec) -> Schema[Any]:
    """Return the `Schema` of a spec that `cached_format` built, cached."""
    if spec.text is None:
        return Schema.of(spec)
    return Shape.of_text(spec.text).derived(
        ("schema", spec.name), lambda: Schema.of(spec), lambda schema: len(schema.name) + estimated_bytes(schema.text)
    )
