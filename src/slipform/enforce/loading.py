"""Load a value from a text without a model: `loads`, `loads_report`, `ensure_json_only`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

from typing_extensions import TypeForm

from slipform.enforce.coercion import Switches
from slipform.enforce.doubts import dropped_data, log_doubts
from slipform.enforce.judging import SchemaHint, violation_error
from slipform.enforce.patching import Patched, patch_as_written, patch_for_type
from slipform.errors import JsonEnforcementError
from slipform.schema import JsonSchemaSpec, ResponseFormat, Schema
from slipform.text.loads import LoadWarning, encode_answer, left_out, load, load_broken, only_json
from slipform.text.repair.tokens import RepairEdit
from slipform.text.strict import parse

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A value from a text, and a record of every step that was needed to get it."""

    value: Any
    start: int
    end: int
    edits: tuple[RepairEdit, ...] = ()
    warnings: tuple[LoadWarning, ...] = ()
    patched: Patched | None = None
    """The patches that made the value valid, if any were needed."""
    left_out: tuple[tuple[int, int], ...] = ()
    """The ranges of text around the JSON that were left out."""


@overload
def loads(
    text: str, schema: None = None, *, strict: bool = False, nan: Literal["refuse", "null"] = "refuse"
) -> Any: ...
@overload
def loads(text: str, schema: type[T], *, strict: bool = False, nan: Literal["refuse", "null"] = "refuse") -> T: ...
@overload
def loads(text: str, schema: Schema[T], *, strict: bool = False, nan: Literal["refuse", "null"] = "refuse") -> T: ...
@overload
def loads(
    text: str,
    schema: dict[str, Any] | JsonSchemaSpec | ResponseFormat | str,
    *,
    strict: bool = False,
    nan: Literal["refuse", "null"] = "refuse",
) -> Any: ...
@overload
def loads(text: str, schema: TypeForm[T], *, strict: bool = False, nan: Literal["refuse", "null"] = "refuse") -> T: ...
def loads(text: str, schema: Any = None, *, strict: bool = False, nan: Literal["refuse", "null"] = "refuse") -> Any:
    """Return the JSON in a text: found, repaired, and with a schema also validated and mechanically patched.

    Valid JSON gives exactly what a strict parser gives. A Python type gives an object of that type, a JSON Schema gives
    plain values. `strict` refuses whatever is not valid as it stands. Raises `JsonEnforcementError` when there is no
    JSON, `SchemaViolationError` when there is and it does not fit.

    >>> loads("Sure! Here it is: {'name': 'Ada', age: 36,}")
    {'name': 'Ada', 'age': 36}
    >>> loads('{"age": "36"}', {"type": "object", "properties": {"age": {"type": "integer"}}})
    {'age': 36}
    """
    if schema is None:
        try:
            return parse(text)
        except ValueError:
            loaded = load(text, strict=True) if strict else load_broken(text, None, nan)
        if loaded.notes:
            log_doubts("loads", [(note.kind, note.message) for note in loaded.notes if note.is_doubt])
        return loaded.value
    target: Schema[Any] = Schema.of(schema)
    report = loads_report(text, target, strict=strict, nan=nan)
    log_doubts("loads", [(note.kind, note.message) for note in report.warnings if note.is_doubt])
    value = report.value
    _, type_violations = target.read(value, encode_answer(value).encode()) if not strict else (None, ())
    patched = None
    if type_violations:
        patched = patch_for_type(value, target, type_violations)
    return target.to_python(value if patched is None else patched.value)


def loads_report(
    text: str, schema: Any = None, *, strict: bool = False, nan: Literal["refuse", "null"] = "refuse"
) -> LoadReport:
    """Return a `LoadReport`: the value as plain JSON, its position in the text, and a record of every edit.

    >>> [edit.kind for edit in loads_report("[1, 2,]").edits]
    ['trailing_comma']
    """
    target: Schema[Any] | None = None if schema is None else Schema.of(schema)
    loaded = load(text, None if target is None else SchemaHint(target), strict=strict, nan=nan)
    spans = left_out(text, loaded.start, loaded.end)
    if target is None:
        warnings = (*loaded.warnings, *_json_in_string(loaded.value))
        return LoadReport(loaded.value, loaded.start, loaded.end, loaded.edits, warnings, left_out=spans)
    patched = patch_as_written(loaded.value, loaded.source, target, Switches.none() if strict else None)
    if patched.violations:
        raise violation_error(patched.violations)
    made = patched if patched.edits else None
    warnings = (*loaded.warnings, *dropped_data(made))
    return LoadReport(patched.value, loaded.start, loaded.end, loaded.edits, warnings, made, spans)


def _json_in_string(value: Any) -> tuple[LoadWarning, ...]:
    """Warn if a string value contains JSON: without a schema, a string stays a string."""
    if not isinstance(value, str) or value.strip()[:1] not in ("{", "["):
        return ()
    try:
        load(value, strict=True)
    except JsonEnforcementError:
        return ()
    return (LoadWarning("json_in_string", 0, "The value is a string that holds JSON; a schema would have it read."),)


def ensure_json_only(text: str, schema: Any = None) -> str:
    """Return only the JSON in a text, in compact form; with a schema, valid against it.

    Without one it is an object or an array. Raises what `loads` raises.

    >>> ensure_json_only('Sure: {"age": "36"}. Bye!', {"type": "object", "properties": {"age": {"type": "integer"}}})
    '{"age":36}'
    """
    if schema is None:
        return only_json(text)
    return encode_answer(loads_report(text, schema).value)
