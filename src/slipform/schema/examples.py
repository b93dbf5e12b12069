"""Build a small valid instance of a schema, deterministically."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil, floor
from typing import Any

from slipform.schema.document import REF, SubSchema, lookup, reference_of, with_plain_references
from slipform.schema.keywords import TIGHTER, implied_types, json_type, tuple_parts
from slipform.schema.patterns import parsed, search
from slipform.schema.summary import compact
from slipform.schema.validator import Compiled, compile_schema

FORMATS = {
    "date-time": "2024-01-31T12:00:00Z",
    "date": "2024-01-31",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "ada@example.com",
    "idn-email": "ada@example.com",
    "hostname": "example.com",
    "idn-hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uri-reference": "/path",
    "iri": "https://example.com/",
    "iri-reference": "/path",
    "uri-template": "/path/{id}",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "json-pointer": "/a/0",
    "relative-json-pointer": "0",
    "regex": "^a$",
}
"""A meaningful text of each format."""
_MAX_LENGTH = 2_000
_CLASSES = {"CATEGORY_DIGIT": "0", "CATEGORY_WORD": "a", "CATEGORY_SPACE": " "}


def matching(pattern: str, variant: int = 0, least: int = 0) -> str | None:
    """Return a short text that matches a pattern, or None when none was found.

    >>> matching("^[A-Z]{3}-[0-9]+$")
    'AAA-0'
    """
    tree = parsed(pattern)
    if tree is None:
        return None
    for extra in (0, 1, max(least, 1)):
        text = _Writer(variant, extra).write(tree)
        if text is not None and least <= len(text) <= _MAX_LENGTH:
            return text
    return None


class _Writer:
    """Generates text for a parsed pattern, each repetition `extra` times more than the minimum."""

    def __init__(self, variant: int, extra: int) -> None:
        self.variant = variant
        self.extra = extra
        self.groups: dict[int, str] = {}

    def write(self, tree: Sequence[tuple[Any, Any]]) -> str | None:
        parts: list[str] = []
        for operation, argument in tree:
            part = self._one_operation(str(operation), argument)
            if part is None or sum(map(len, parts)) > _MAX_LENGTH:
                return None
            parts.append(part)
        return "".join(parts)

    def _one_operation(self, operation: str, argument: Any) -> str | None:
        """Return a text that matches one operation of a parsed pattern; None where it is not supported."""
        if operation == "LITERAL":
            return chr(argument)
        if operation == "NOT_LITERAL":
            return "a" if argument != ord("a") else "b"
        if operation == "ANY":
            return "a"
        if operation == "IN":
            return self._of_set(argument)
        if operation == "BRANCH":
            return self.write(argument[1][self.variant % len(argument[1])])
        if operation == "SUBPATTERN":
            text = self.write(argument[3])
            if text is not None and argument[0] is not None:
                self.groups[argument[0]] = text
            return text
        if operation in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
            return self._repeat_group(*argument)
        if operation == "GROUPREF":
            return self.groups.get(argument)
        if operation in {"AT", "ASSERT", "ASSERT_NOT"}:
            return ""
        return None

    def _repeat_group(self, least: int, most: int, inner: Sequence[tuple[Any, Any]]) -> str | None:
        times = min(least + self.extra, int(most))
        if times > _MAX_LENGTH:
            return None
        text = self.write(inner)
        return None if text is None else text * times

    def _of_set(self, members: Sequence[tuple[Any, Any]]) -> str | None:
        if str(members[0][0]) == "NEGATE":
            return next(
                (char for char in "aA0 -_" if not any(_allows_character(member, char) for member in members[1:])), None
            )
        operation, argument = members[self.variant % len(members)]
        if str(operation) == "LITERAL":
            return chr(argument)
        if str(operation) == "RANGE":
            low, high = argument
            return chr(low + self.variant % (high - low + 1))
        return _CLASSES.get(str(argument), "-")


def _allows_character(member: tuple[Any, Any], char: str) -> bool:
    operation = str(member[0])
    argument = member[1]
    if operation == "LITERAL":
        return ord(char) == int(argument)
    if operation == "RANGE":
        return bool(argument[0] <= ord(char) <= argument[1])
    kinds = {
        "CATEGORY_DIGIT": char.isdigit(),
        "CATEGORY_WORD": char.isalnum() or char == "_",
        "CATEGORY_SPACE": char == " ",
    }
    name = str(argument)
    if name in kinds:
        return kinds[name]
    return not kinds.get(name.replace("NOT_", ""), True)


_NUMBERS = frozenset({"integer", "number"})
_MAX_STEPS = 3_000
_MAX_DEPTH = 24
_SHOWN_DEPTH = 4
"""Optional parts are included down to this depth; below it, only required ones."""


@dataclass(frozen=True, slots=True)
class Example:
    """A valid instance of a schema."""

    value: Any

    @property
    def text(self) -> str:
        """The value as compact JSON."""
        return compact(self.value)


class _NoExampleError(Exception):
    """No valid instance exists, or none was found within the allowed steps."""


def example(schema: Mapping[str, Any]) -> Example | None:
    """Return a small valid instance, always the same one; None when none was found.

    >>> example({"type": "object", "properties": {"age": {"type": "integer", "minimum": 18}}, "required": ["age"]}).text
    '{"age":18}'
    """
    validator = compile_schema(schema)
    compiled = compile_schema(with_plain_references(schema))
    for generous in (True, False):
        try:
            maker = _Maker(compiled, generous=generous)
            value = maker.make(compiled.index.root.node, compiled.index.root, 0, 0)
        except (_NoExampleError, ArithmeticError, ValueError, RecursionError):
            continue
        if validator.is_valid(value):
            return Example(value)
    return None


class _Maker:
    def __init__(self, compiled: Compiled, *, generous: bool) -> None:
        self.compiled = compiled
        self.generous = generous
        self.steps = 0

    def make(self, node: Any, place: SubSchema, depth: int, variant: int) -> Any:
        """Return a value for `node`, which must be valid at `place`; another `variant` yields another value."""
        self.steps += 1
        if self.steps > _MAX_STEPS or depth > _MAX_DEPTH or node is False:
            raise _NoExampleError
        if not isinstance(node, dict):
            return "text" if variant == 0 else f"text{variant}"
        for value in self._named_values(node, variant):
            if self.compiled.fits(place, value):
                return value
        if "const" in node or "enum" in node:
            raise _NoExampleError
        for keyword in (REF, "allOf", "anyOf", "oneOf"):
            if keyword in node:
                return self._composed(node, place, depth, variant, keyword)
        return self._typed(node, place, depth, variant)

    def _named_values(self, node: Mapping[str, Any], variant: int) -> Iterator[Any]:
        """Yield values that the schema itself names."""
        if "const" in node:
            yield node["const"]
        options = node.get("enum")
        if isinstance(options, list) and options:
            yield from (options[variant % len(options) :] + options)[:50]
        examples = node.get("examples")
        if isinstance(examples, list):
            yield from examples[variant : variant + 3]

    def _composed(self, node: dict[str, Any], place: SubSchema, depth: int, variant: int, keyword: str) -> Any:
        """Try the branches of a composition, each together with its siblings."""
        rest = {key: value for key, value in node.items() if key != keyword}
        if keyword == REF:
            target = self.compiled.index.target(place, str(node[REF]))
            if target is None:
                raise _NoExampleError
            alone = not rest.keys() - {"title", "description", "default", "$defs", "definitions", "$schema", "$id"}
            if alone or self.compiled.reference_hides_siblings:
                return self.make(target.node, target, depth + 1, variant)
            return self.make(_merge_schemas(rest, target.node), place, depth + 1, variant)
        if keyword == "allOf":
            for part in node[keyword]:
                rest = _merge_schemas(rest, self._resolved(part))
            return self.make(rest, place, depth + 1, variant)
        for part in sorted(node[keyword], key=_is_null):
            try:
                value = self.make(_merge_schemas(rest, self._resolved(part)), place, depth + 1, variant)
            except _NoExampleError:
                continue
            if self.compiled.fits(place, value):
                return value
        raise _NoExampleError

    def _resolved(self, part: Any) -> Any:
        for _ in range(20):
            reference = reference_of(part)
            if reference is None:
                return part
            target = lookup(self.compiled.document, reference)
            if target is None:
                raise _NoExampleError
            part = _merge_schemas({key: value for key, value in part.items() if key != REF}, target)
        raise _NoExampleError

    def _typed(self, node: dict[str, Any], place: SubSchema, depth: int, variant: int) -> Any:
        """Return a value of a type that the schema names or implies."""
        named = node.get("type")
        if isinstance(named, str):
            return self._of_type(named, node, place, depth, variant)
        if named:
            return self._of_type(min(named, key=lambda name: name == "null"), node, place, depth, variant)
        kinds = implied_types(node)
        for kind in kinds if kinds and self.generous else (*kinds, "string"):
            value = self._of_type(kind, node, place, depth, variant)
            if self.compiled.fits(place, value):
                return value
        raise _NoExampleError

    def _of_type(self, kind: str, node: dict[str, Any], place: SubSchema, depth: int, variant: int) -> Any:
        if kind == "object":
            return self._object(node, place, depth, variant)
        if kind == "array":
            return self._array(node, place, depth, variant)
        if kind in _NUMBERS:
            return _number(node, variant, whole=kind == "integer")
        if kind == "string":
            return _text(node, variant)
        return None if kind == "null" else variant % 2 == 0

    def _object(self, node: dict[str, Any], place: SubSchema, depth: int, variant: int) -> dict[str, Any]:
        """Return an object with the required properties, and some optional ones where needed or allowed."""
        properties: dict[str, Any] = node["properties"] if isinstance(node.get("properties"), dict) else {}
        needed = _needed_names(node)
        least = node.get("minProperties", 0)
        shown = [name for name in properties if self.generous and not node.get("required") and depth < _SHOWN_DEPTH][:5]
        spare = (name for name in properties if name not in needed and name not in shown)
        made_up = (f"key{number}" for number in range(1, 51))
        chosen = dict.fromkeys([*needed, *shown])
        for name in chain(spare, made_up):
            if len(chosen) >= least:
                break
            chosen[name] = None
        out: dict[str, Any] = {}
        order = {name: number for number, name in enumerate(properties)}
        for name in sorted(chosen, key=lambda name: order.get(name, len(order))):
            out.update(
                self._member(node, properties, name, place, depth, variant, must=name in needed or name not in shown)
            )
        return out

    def _member(
        self,
        node: dict[str, Any],
        properties: Any,
        name: str,
        place: SubSchema,
        depth: int,
        variant: int,
        *,
        must: bool,
    ) -> dict[str, Any]:
        """Return a property with its value; empty for an optional one without a valid value."""
        rule = properties.get(name, node.get("additionalProperties", True))
        inner = self._place_of(rule, place)
        for pattern, sub in (node.get("patternProperties") or {}).items():
            if search(pattern, name):
                rule = _merge_schemas(rule, sub) if name in properties else sub
                inner = self._place_of(rule, place)
        try:
            return {name: self.make(rule, inner, depth + 1, variant)}
        except _NoExampleError:
            if must:
                raise
            return {}

    def _place_of(self, node: Any, place: SubSchema) -> SubSchema:
        """Return the place of a part, for validating its value.

        The value of an invented part is validated with the whole.
        """
        if not isinstance(node, dict):
            return SubSchema(node, "", "", place.base)
        return self._found_place(node, place)

    def _found_place(self, node: dict[str, Any], place: SubSchema) -> SubSchema:
        place_of_node = self.compiled.place_of(node)
        if place_of_node is not None:
            return place_of_node
        return SubSchema(True, "", "", place.base)

    def _array(self, node: dict[str, Any], place: SubSchema, depth: int, variant: int) -> list[Any]:
        """Return an array with the required number of items, in a generous example at least one."""
        first, rule = tuple_parts(node)
        least = node.get("minItems", 0)
        count = max(least, len(first) if self.generous else 0)
        if "contains" in node:
            count = max(count, node.get("minContains", 1))
            rule = node["contains"]
        if self.generous and depth < _SHOWN_DEPTH and rule is not False and isinstance(rule, dict):
            count = max(count, 1)
        count = min(count, node.get("maxItems", count))
        if count > 100:
            raise _NoExampleError
        out: list[Any] = []
        for number in range(int(count)):
            part = first[number] if number < len(first) else rule
            other = variant + number if node.get("uniqueItems") else variant
            try:
                out.append(self.make(part, self._place_of(part, place), depth + 1, other))
            except _NoExampleError:
                if number < least:
                    raise
                break
        return out


def _is_null(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "null"


def _needed_names(node: dict[str, Any]) -> list[str]:
    """Return the required properties, and those that they require in turn."""
    needed = [name for name in node.get("required") or [] if isinstance(name, str)]
    for name in list(needed):
        needed += [more for more in (node.get("dependentRequired") or {}).get(name, ()) if more not in needed]
    return needed


def _merge_schemas(one: Any, other: Any) -> Any:
    """Return an approximate merger of two schemas; the result is validated against the real ones."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        if one is False or other is False:
            return False
        return one if isinstance(one, dict) else other
    out = {**one}
    for key, value in other.items():
        _merge_keyword(out, key, value)
    return out


def _merge_keyword(out: dict[str, Any], key: str, value: Any) -> None:
    """Add a keyword to a merged schema: bounds are tightened, properties merged, choices combined."""
    if key == "required" and isinstance(out.get(key), list):
        out[key] = list(dict.fromkeys([*out[key], *value]))
    elif key in {"properties", "patternProperties", "dependentRequired"} and isinstance(out.get(key), dict):
        out[key] = out[key] | {name: _merge_schemas(out[key].get(name, True), sub) for name, sub in value.items()}
    elif key in TIGHTER and key in out:
        out[key] = TIGHTER[key](out[key], value)
    elif key in {"anyOf", "oneOf", "allOf"} and key in out:
        out["allOf"] = [*out.get("allOf", ()), {key: value}]
    else:
        out[key] = value


def _number(node: Mapping[str, Any], variant: int, *, whole: bool) -> Any:
    """Return the smallest number that fits, or with a `variant` another one."""
    low, high, step = _bounds(node)
    unit: Any = step or 1
    value: Any = unit
    if low is not None:
        is_stepped = whole or bool(step)
        value = ceil(low / unit) * unit if is_stepped else low
        if value == node.get("exclusiveMinimum") or (node.get("exclusiveMinimum") is True and value == low):
            has_room = is_stepped or high is None or low + unit < high
            value += unit if has_room else (high - low) / 2
    elif high is not None and high <= unit:
        value = floor(high / unit) * unit
        if value == node.get("exclusiveMaximum") or node.get("exclusiveMaximum") is True:
            value -= unit
        return value - variant * unit
    return value + variant * unit


def _bounds(node: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    lows = [node[key] for key in ("minimum", "exclusiveMinimum") if json_type(node.get(key)) in _NUMBERS]
    highs = [node[key] for key in ("maximum", "exclusiveMaximum") if json_type(node.get(key)) in _NUMBERS]
    return max(lows, default=None), min(highs, default=None), node.get("multipleOf")


def _text(node: Mapping[str, Any], variant: int) -> str:
    """Return a text of the required pattern, format or length; raises `_NoExampleError` where none is found."""
    least = int(node.get("minLength", 0))
    most = node.get("maxLength")
    if isinstance(pattern := node.get("pattern"), str):
        text = matching(pattern, variant, least)
        if text is None:
            raise _NoExampleError
        return text
    text = FORMATS.get(str(node.get("format")), "text")
    if variant and "format" not in node:
        text += str(variant)
    if least > 10_000:
        raise _NoExampleError
    text = text.ljust(least, "x")
    return text if most is None else text[: int(most)]
