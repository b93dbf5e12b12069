"""Compile schemas and validate values, with formats as defined by JSON or by Python types.

In JSON Schema, `date-time` and `time` need an offset, and `duration` has no fractions or signs; Python's
`datetime`, `time` and `timedelta` have all of these.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Mapping
from datetime import datetime, time
from itertools import islice
from typing import Any, Literal, TypeAlias

import jsonschema_rs
import orjson
from jsonschema_rs import FancyRegexOptions, Registry

from slipform.bounded import BoundedCache
from slipform.errors import SchemaError
from slipform.schema.document import (
    REF,
    REFERENCES,
    SchemaDocument,
    SubSchema,
    absolute_reference,
    draft_of,
    join_pointer,
)
from slipform.schema.explain import MAX_VIOLATIONS, explain
from slipform.schema.limits import canonical_text, examine, is_plain, not_json, plain_copy, too_deep
from slipform.schema.patterns import (
    MAX_NAME_STEPS,
    MAX_STEPS,
    CountedPattern,
    PatternUse,
    can_match_names,
    counting,
    survey,
    with_intended_patterns,
)
from slipform.schema.shape import Shape
from slipform.schema.violations import Violation, excerpt_of

_TIME = r"\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:[Zz]|[+-]\d\d:?\d\d)?"
_DATE_TIME = re.compile(rf"\d{{4}}-\d\d-\d\d[Tt ]{_TIME}", re.ASCII)
_TIME_ALONE = re.compile(_TIME, re.ASCII)
_NUMBER = r"\d{1,9}(?:[.,]\d{1,9})?"
_DURATION = re.compile(
    rf"[+-]?P(?=[\dT])(?:{_NUMBER}W|(?:{_NUMBER}Y)?(?:{_NUMBER}M)?(?:{_NUMBER}D)?"
    rf"(?:T(?=\d)(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?)",
    re.ASCII,
)


def is_datetime(text: str) -> bool:
    """Return whether a text is a date and a time, with or without an offset.

    >>> is_datetime("2024-02-29T10:00:00"), is_datetime("2023-02-29T10:00:00")
    (True, False)
    """
    return bool(_DATE_TIME.fullmatch(text)) and _can_read(datetime.fromisoformat, text)


def is_time(text: str) -> bool:
    """Return whether a text is a time of day, with or without an offset."""
    return bool(_TIME_ALONE.fullmatch(text)) and _can_read(time.fromisoformat, text)


def is_duration(text: str) -> bool:
    """Return whether a text is an ISO 8601 duration, which may have a sign and fractions.

    >>> is_duration("-P1DT0.5S"), is_duration("one day")
    (True, False)
    """
    return bool(_DURATION.fullmatch(text))


def _can_read(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text.upper())
    except ValueError:
        return False
    return True


def _is_address(name: str) -> Callable[[str], bool]:
    """Return whether a text is only a mail address: the validator's own check accepts `Ada <ada@example.com>`."""
    is_valid = jsonschema_rs.validator_for({"format": name}, validate_formats=True).is_valid
    return lambda text: not text.endswith(">") and is_valid(text)


JSON_FORMATS: dict[str, Callable[[str], bool]] = {name: _is_address(name) for name in ("email", "idn-email")}
PYTHON_FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": is_datetime,
    "time": is_time,
    "duration": is_duration,
}
_TIMES_SCHEMA = 80
"""Bytes that a validator retains per byte of its schema's text: the highest measured value."""
_LEAST = 2_000
_LARGE = 50_000
_DYNAMIC = REFERENCES[1:]
_SINCE_2019 = ("dependentRequired", "dependentSchemas", "prefixItems", *_DYNAMIC)
_UNKNOWN_TO = {
    4: frozenset({"contains", "propertyNames", "if", *_SINCE_2019}),
    6: frozenset({"if", *_SINCE_2019}),
    7: frozenset(_SINCE_2019),
    2019: frozenset({"$dynamicRef", "prefixItems"}),
    2020: frozenset({"$recursiveRef", "additionalItems"}),
}
_DRAFTS = {
    4: jsonschema_rs.Draft4,
    6: jsonschema_rs.Draft6,
    7: jsonschema_rs.Draft7,
    2019: jsonschema_rs.Draft201909,
    2020: jsonschema_rs.Draft202012,
}
_FOREIGN = re.compile(r"Resource '(.*?)' is not present", re.DOTALL)
_NOWHERE = re.compile(r"(?:Pointer|Anchor) '(.*?)' does not exist", re.DOTALL)
_METASCHEMA = re.compile(r"Unknown meta-schema: '(.*?)'", re.DOTALL)
_METASCHEMA_ID = re.compile(r"https?://json-schema\.org/(?:draft-\d\d|draft/20\d\d-\d\d)/schema#?")
Formats: TypeAlias = Literal["json", "python", "ignored"]
"""The meaning of `format`: that of JSON Schema, that of Python types, or none."""


def _without_metaschema_id(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without a metaschema's id, which would redirect references to its own parts."""
    own_id = document.get("$id", document.get("id"))
    if not isinstance(own_id, str) or not _METASCHEMA_ID.fullmatch(own_id):
        return document
    return {name: value for name, value in document.items() if name not in ("$id", "id")}


class Compiled:
    """A compiled schema. Thread-safe: parts are compiled on demand and only ever added.

    >>> Compiled({"type": "integer"}).is_valid(3)
    True
    """

    __slots__ = (
        "_format_checks",
        "_formats",
        "_index",
        "_mark",
        "_pattern_use",
        "_refers",
        "_registry",
        "_resources",
        "document",
        "draft",
        "is_valid",
        "recursive",
        "size",
    )

    def __init__(
        self,
        document: dict[str, Any],
        *,
        formats: Formats = "json",
        resources: Mapping[str, Any] | None = None,
        text: bytes | None = None,
    ) -> None:
        document = _without_metaschema_id(document)
        self.document = document
        self.draft = draft_of(document)
        self._formats: Formats = formats
        self._format_checks = PYTHON_FORMATS if formats == "python" else JSON_FORMATS
        if text is not None and not resources:
            # Only those that occur: with any check in Python, jsonschema-rs takes 1.7 times as long for all values.
            self._format_checks = {
                name: check for name, check in self._format_checks.items() if f'"{name}"'.encode() in text
            }
        self._resources = dict(resources or {})
        self._registry: Registry | None = None
        self._index: SchemaDocument | None = None
        self._mark = next(_MARKS)
        length = _length(document) if text is None else len(text)
        self._refers = text is None or b'Ref"' in text or REF.encode() in text
        self.size = _LEAST + _TIMES_SCHEMA * (length + sum(map(_length, self._resources.values())))
        """The approximate number of bytes that it retains."""
        self._pattern_use = PatternUse()
        # Only references or sheer size can make a schema fan out, and only references make it recursive.
        needs_graph = length > _LARGE or self._refers
        self.recursive = needs_graph and examine(self.index).recursive
        if text is None or resources or b'"pattern' in text:
            use = survey([document, *self._resources.values()])
            if use.counted:
                self._compile(document)  # raises for an invalid pattern
                self._pattern_use = use
        is_valid = self._within_work(self._compile(document))
        self.is_valid: Callable[[Any], bool] = self._within_stack(is_valid) if self.recursive else is_valid

    @property
    def index(self) -> SchemaDocument:
        """The index of the document's subschemas."""
        if self._index is None:
            self._index = SchemaDocument(self.document, self._resources)
        return self._index

    @property
    def reference_hides_siblings(self) -> bool:
        """Whether keywords beside a `$ref` are ignored, as up to draft 7."""
        return self.draft <= 7

    @property
    def counts_contains(self) -> bool:
        """Whether the draft has `minContains` and `maxContains`, as from 2019-09."""
        return self.draft >= 2019

    def knows(self, keyword: str) -> bool:
        """Return whether the schema's draft has this keyword."""
        return keyword not in _UNKNOWN_TO[self.draft]

    def fits(self, place: SubSchema, value: Any) -> bool:
        """Return whether a subschema accepts a value."""
        if isinstance(place.node, bool):
            return place.node
        if place is self.index.root:
            return self.is_valid(value)
        key = (place.document, place.path)
        return self._within_work(self._part(key, lambda: absolute_reference(place), self._size_of(place)))(value)

    def holds(self, place: SubSchema, keyword: str, value: Any) -> bool:
        """Return whether one assertion of a subschema accepts a value."""
        rule = place.node[keyword]
        if keyword in {"exclusiveMinimum", "exclusiveMaximum"} and isinstance(rule, bool):
            return True
        key = (place.document, place.path, keyword)
        part = self._part(key, lambda: _single_assertion(place.node, keyword), lambda: _held_by(rule))
        return self._within_work(part)(value)

    def place_of(self, node: Any) -> SubSchema | None:
        """Return the place of a subschema of the document; None for any other."""
        return self.index.place_of(node)

    def first_error(self, place: SubSchema, value: Any) -> tuple[str, str, tuple[str | int, ...]]:
        """Return the keyword, message and path of one error of the validator."""
        schema = self.document if place is self.index.root else absolute_reference(place)
        try:
            self._part(("first", place.document, place.path), lambda: schema, self._size_of(place)).validate(value)
        except jsonschema_rs.ValidationError as error:
            text = error.message if len(error.message) <= 300 else error.message[:300] + "…"
            return error.kind.name, text, tuple(error.instance_path)
        except ValueError:
            return "depth", "does not fit, and is nested too deeply to say why", ()
        return "schema", "does not fit", ()

    def _size_of(self, place: SubSchema) -> Callable[[], int]:
        """Return the bytes that the validator of a subschema retains, with everything that it refers to."""
        return lambda: self.size if self._refers else _held_by(place.node)

    def _part(
        self, key: tuple[Any, ...], schema: Callable[[], dict[str, Any]], size: Callable[[], int]
    ) -> jsonschema_rs.Validator:
        key = (self._mark, *key)
        part = _PARTS.use(key)
        if part is None:
            body = schema()
            if "$schema" in self.document:
                body = {"$schema": self.document["$schema"], **body}
            part = self._compile(body)
            _PARTS.put(key, part, size())
        return part

    def _compile(self, schema: dict[str, Any]) -> jsonschema_rs.Validator:
        """Compile a schema with jsonschema-rs; raises `SchemaError` for one that it refuses."""
        try:
            registry = None
            counted = self._pattern_use.counted
            if schema is not self.document or self._resources:
                registry = self._documents()
            return jsonschema_rs.validator_for(
                schema,
                formats=self._format_checks or None,
                validate_formats=self._formats != "ignored",
                registry=registry,
                pattern_options=FancyRegexOptions(backtrack_limit=MAX_NAME_STEPS if counted else MAX_STEPS),
                keywords={"pattern": CountedPattern} if counted else None,
                offline=True,
            )
        except jsonschema_rs.ValidationError as error:
            raise _refusal(error) from error
        except (jsonschema_rs.ReferencingError, ValueError) as error:
            raise _reference_refusal(str(error)) from error

    def _documents(self) -> Registry:
        if self._registry is None:
            self._registry = Registry(
                [*self._resources.items(), (self.index.root.document, self.document)], draft=_DRAFTS[self.draft]
            )
        return self._registry

    def _within_stack(self, is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
        """Return the check for a recursive schema: a value that is too deep for the validator's stack is not valid."""

        def guarded(value: Any) -> bool:
            return not too_deep(value) and is_valid(value)

        return guarded

    def _within_work(self, validator: jsonschema_rs.Validator) -> Callable[[Any], bool]:
        """Return the validator's verdict, within a bounded amount of work where its patterns may be costly."""
        is_valid = validator.is_valid
        use = self._pattern_use
        if not use.counted:
            return is_valid

        def counted(value: Any) -> bool:
            if use.of_names and not can_match_names(use.of_names, value):
                return False
            with counting() as budget:
                before = budget.given_up
                # Under `not`, an undecided match would count as no match.
                return is_valid(value) and budget.given_up == before

        return counted


_MARKS = itertools.count()
_PARTS = BoundedCache[tuple[Any, ...], jsonschema_rs.Validator](
    "parts of compiled schemas", entries=4_000, max_bytes=64_000_000
)


def _length(value: Any) -> int:
    """Return the length of a value's JSON text."""
    try:
        return len(orjson.dumps(value))
    except TypeError:  # integers beyond 64 bits
        return len(repr(value))


def _held_by(rule: Any) -> int:
    return _LEAST + _TIMES_SCHEMA * _length(rule)


def _single_assertion(node: Mapping[str, Any], keyword: str) -> dict[str, Any]:
    """Return one assertion, with the boolean that modifies it in draft 4."""
    flag = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}.get(keyword)
    if flag and isinstance(node.get(flag), bool):
        return {keyword: node[keyword], flag: node[flag]}
    return {keyword: node[keyword]}


def _refusal(error: jsonschema_rs.ValidationError) -> SchemaError:
    if not error.instance_path:
        return _reference_refusal(error.message)
    steps = error.instance_path
    keyword = next((step for step in reversed(steps) if isinstance(step, str)), "")
    value_text = excerpt_of(error.instance)
    if keyword in {"pattern", "patternProperties"} and isinstance(error.instance, str):
        reason = f"{value_text} is not a regular expression that JSON Schema knows, or it is too large"
    elif keyword == "type":
        reason = (
            f"`type` cannot be {value_text}; the types are array, boolean, integer, null, number, object and string"
        )
    else:
        reason = f"`{keyword}` cannot be {value_text}: {error.message[:300]}"
    return SchemaError(f"The schema is not valid: {reason}", where=f"#{join_pointer(steps)}", hint=_HINT)


def _reference_refusal(message: str) -> SchemaError:
    if foreign := _FOREIGN.search(message):
        return SchemaError(
            f"The schema refers to {foreign[1]!r:.300}, which is not part of it, and nothing is fetched",
            hint="Put the referenced schema under `$defs`, or give it as one of the known resources.",
        )
    if nowhere := _NOWHERE.search(message):
        return SchemaError(f"The schema refers to '#{nowhere[1]:.300}', which it does not define", hint=_HINT)
    if unknown := _METASCHEMA.search(message):
        return SchemaError(
            f"The schema's `$schema` is {unknown[1]!r:.300}, which is not a known draft",
            hint="Use draft 4, 6, 7, 2019-09 or 2020-12.",
        )
    return SchemaError(
        f"The schema is not valid: {message.splitlines()[0][:300] if message else 'unknown'}", hint=_HINT
    )


_HINT = "Correct the schema and send it again."
__all__ = ["Violation", "compile_schema", "find_violations", "fingerprint", "prepare", "violations"]


def fingerprint(document: Mapping[str, Any]) -> str:
    """Return a stable hash of a schema's meaning, regardless of the order of its keys.

    It ignores the order of `properties`: values that depend on that order must not be stored under it.

    >>> fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(canonical_text(document)).hexdigest()


def compile_schema(
    document: Mapping[str, Any], *, formats: Formats = "json", resources: Mapping[str, Any] | None = None
) -> Compiled:
    """Return the compiled schema; raises `SchemaError` for an unusable one.

    `resources` are the other documents it may refer to, by URI; nothing is ever fetched.

    >>> compile_schema({"type": "integer"}).is_valid("3")
    False
    """
    return prepare(document, formats, resources)[1]


def prepare(document: Mapping[str, Any], formats: Formats, resources: Mapping[str, Any] | None) -> tuple[str, Compiled]:
    """Return a schema's fingerprint and its compiled form."""
    text = canonical_text(document)
    shape = Shape.of_text(text)
    name = shape.derived("fingerprint", lambda: hashlib.sha256(text).hexdigest(), len)
    digest = hashlib.sha256(canonical_text(resources)).hexdigest() if resources else ""
    compiled = shape.derived(
        ("validator", formats, digest),
        lambda: _compiled(plain_copy(document), text, formats, resources),
        lambda each: each.size,
    )
    return name, compiled


def _compiled(document: dict[str, Any], text: bytes, formats: Formats, resources: Mapping[str, Any] | None) -> Compiled:
    copies = plain_copy(resources) if resources else None
    try:
        return Compiled(document, formats=formats, resources=copies, text=text)
    except SchemaError:
        if b'"pattern' not in text or (intended := with_intended_patterns(document)) == document:
            raise
        return Compiled(intended, formats=formats, resources=copies, text=canonical_text(intended))


def violations(document: Mapping[str, Any], value: Any) -> list[Violation]:
    """Return every violation of `document` in `value`.

    >>> [found.message for found in violations({"type": "integer"}, "x")]
    ['expected integer, found "x"']
    """
    return find_violations(compile_schema(document), value)


def find_violations(compiled: Compiled, value: Any) -> list[Violation]:
    """Return every violation of a value, at most 1,000; none for a valid one."""
    try:
        if compiled.is_valid(value):
            return []
        plain = is_plain(value)
    except ValueError:  # not JSON; the walk below finds where
        plain = False
    if not plain and (strange := list(islice(not_json(value), MAX_VIOLATIONS))):
        return strange
    try:
        return explain(compiled, value)
    except (ValueError, RecursionError):
        message = "does not fit, and is nested too deeply to say why"
        return [Violation("", "", "depth", message, found=excerpt_of(value), steps=())]
