"""Expand a schema into plain alternatives, without `$ref`, `allOf`, choices, `not`, conditions or dependencies.

The compiler accepts neither `not` nor conditions nor most `oneOf`. They have equivalents: a condition is a choice
between "it holds, and so does `then`" and "it does not, and `else` does"; `oneOf` is a choice in which each branch
excludes the others. Every value of an alternative is valid under the schema, but not every valid value needs an
alternative, so that keywords without an equivalent are left out.

A negation describes some of the remaining values, not always all: "not these words" leaves every other text, "at
least 3" leaves "at most 2".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from slipform.addons.local.decoding.cost import types_of
from slipform.addons.local.decoding.patterns import are_apart, pieces
from slipform.schema.document import DEFINITIONS, DYNAMIC_REF, RECURSIVE_REF, REF, Json, lookup
from slipform.schema.keywords import (
    ANNOTATIONS,
    NoNormalForm,
    PlainSchema,
    Unsatisfiable,
    common_values,
    intersection,
    json_key,
    json_type,
    named_types,
    property_schema,
)

_MOST_LETTERS = 120
_NEGATED = frozenset(
    {
        *(REF, "allOf", "anyOf", "not", "type", "enum", "const"),
        *("required", "properties", "additionalProperties", "minProperties", "maxProperties"),
        *("minLength", "maxLength", "pattern", "minItems", "maxItems", "minimum", "maximum"),
    }
)
"""Keywords whose negation is a choice of plain schemas, with few exceptions."""
_ALL = frozenset({"string", "number", "boolean", "null", "array", "object"})
_ANY = r"[\s\S]"
_REST = f"{_ANY}*"
_NUMBERS = frozenset({"number", "integer"})


def no_value_of(name: str) -> PlainSchema:
    """Return the schema of an object without this property."""
    return {"type": ["object"], "properties": {name: False}}


def keyword_negations(form: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[PlainSchema]:
    """Yield schemas whose values are not valid under `other`, each the negation of one of its keywords.

    They are to be intersected with `form`: only types and values of `form` are considered.

    >>> list(keyword_negations({"type": ["string", "null"]}, {"type": "string", "minLength": 3}))
    [{'type': ['null']}, {'type': ['string'], 'maxLength': 2}]
    """
    if excluded := named_types(other):
        kinds = _remaining_types(_kinds(form), excluded)
        if kinds:
            yield {"type": sorted(kinds)}
    if "enum" in other or "const" in other:
        yield from _other_values(form, other.get("enum", [other.get("const")]))
    for name in other.get("required", ()):
        yield no_value_of(name)
    for keyword, (kind, opposite) in _OPPOSITES.items():
        if keyword in other and not isinstance(other[keyword], bool):
            yield from ({"type": [kind], **one} for one in opposite(other[keyword]))


def _can_negate_type(form: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether the types of a form are known, and not split into integers and other numbers by `other`."""
    if form and not named_types(form):
        return False
    return "number" not in _kinds(form) or named_types(other) & _NUMBERS != {"integer"}


def can_negate(form: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether `keyword_negations` describes every value within `form` that `other` does not accept."""
    keywords = other.keys() - ANNOTATIONS
    kinds = named_types(form)
    if not keywords <= _NEGATED or (REF in keywords and len(keywords) > 1):
        return False
    if {"enum", "const"} & keywords and "enum" not in form and not (kinds and kinds <= {"string", "boolean", "null"}):
        return False
    if "type" in keywords and not _can_negate_type(form, other):
        return False
    if {"minimum", "maximum"} & keywords and (not kinds or "number" in kinds):
        return False
    return "pattern" not in keywords


def _kinds(form: Mapping[str, Any]) -> frozenset[str]:
    return types_of(form) if form else _ALL


def _remaining_types(kinds: frozenset[str], excluded: frozenset[str]) -> frozenset[str]:
    # An integer is also a number.
    return kinds - (excluded | _NUMBERS if excluded & _NUMBERS else excluded)


def _other_values(form: Mapping[str, Any], values: list[Json]) -> Iterator[PlainSchema]:
    """Yield schemas of the values of a form except the listed ones, by type."""
    if "enum" in form:
        taken = {json_key(value) for value in values}
        left = [value for value in form["enum"] if json_key(value) not in taken]
        if left:
            yield {"enum": left}
        return
    types = frozenset(json_type(value) for value in values)
    kinds = _remaining_types(_kinds(form), types)
    if kinds:
        yield {"type": sorted(kinds)}
    if "string" in types:
        yield {"type": ["string"], "pattern": other_words([value for value in values if isinstance(value, str)])}
    if types & _NUMBERS:
        # A grammar cannot exclude single numbers: only those above all listed ones are allowed.
        yield {"type": ["number"], "minimum": max(value for value in values if json_type(value) in _NUMBERS) + 1}
    if "boolean" in types:
        yield {"enum": [value for value in (False, True) if value not in values]}


def other_words(words: list[str]) -> str:
    """Return a pattern of texts other than these words; of fewer texts where there are many words.

    >>> other = re.compile(other_words(["ab", "a"]))
    >>> [word for word in ("", "a", "b", "ab", "abc", "ba") if other.search(word)]
    ['', 'b', 'abc', 'ba']
    """
    if sum(map(len, words)) > _MOST_LETTERS:
        return f"^[^{_escaped_class({word[0] for word in words if word})}]{_REST}$"
    prefixes = sorted({word[:end] for word in words for end in range(len(word) + 1)})
    alternatives: list[str] = []
    for start in prefixes:
        following = {word[len(start)] for word in words if word.startswith(start) and len(word) > len(start)}
        if start not in words:
            alternatives.append(re.escape(start))
        alternatives.append(
            re.escape(start) + (f"[^{_escaped_class(following)}]{_REST}" if following else f"{_ANY}{_REST}")
        )
    return f"^({'|'.join(alternatives)})$"


def _escaped_class(letters: set[str]) -> str:
    return "".join("\\" + letter if letter in "\\]^-[" else letter for letter in sorted(letters))


def _other_texts(pattern: str) -> list[PlainSchema]:
    """Return the schemas of texts that do not match a pattern of one character class; none for other patterns."""
    parts = list(pieces(pattern))
    if len(parts) == 4 and parts[0] == "^" and parts[2] in "+*" and parts[3] == "$" and (other := _negated(parts[1])):
        return [{"pattern": other}]
    if len(parts) == 1 and (other := _negated(parts[0])):
        return [{"pattern": f"^{other}*$"}]
    if len(parts) > 1 and parts[0] == "^" and (other := _first_character_negated(parts[1:])):
        return [{"pattern": f"^{other}"}]
    return []


def _first_character_negated(parts: list[str]) -> str | None:
    """Return a class without the first character of a pattern, if that is of one class and required."""
    depth = 0
    follows = parts[1:2]
    for part in parts:
        depth += part.startswith("(") - (part == ")")
        if part == "|" and depth == 0:
            return None
    if follows and (follows[0] in "*?" or re.match(r"\{0", follows[0])):
        return None
    return _negated(parts[0])


def _negated(part: str) -> str | None:
    """Return the negation of a pattern for one character; None where it is not known."""
    if part.startswith("["):
        if part.startswith("[^"):
            return "[" + part[2:]
        return "[^" + part[1:]
    if re.fullmatch(r"\\[dDsSwW]", part):
        return part.swapcase()
    if len(part) == 2 and part[0] == "\\" and not part[1].isalnum():
        return f"[^{part}]"
    return f"[^{_escaped_class({part})}]" if part.isalnum() or part in "-_ @#/:,;<>=!%&~" else None


_OPPOSITES: Final[dict[str, tuple[str, Callable[[Any], list[PlainSchema]]]]] = {
    "minLength": ("string", lambda least: [{"maxLength": least - 1}] if least > 0 else []),
    "maxLength": ("string", lambda most: [{"minLength": most + 1}]),
    "pattern": ("string", _other_texts),
    "minItems": ("array", lambda least: [{"maxItems": least - 1}] if least > 0 else []),
    "maxItems": ("array", lambda most: [{"minItems": most + 1}]),
    "minProperties": ("object", lambda least: [{"maxProperties": least - 1}] if least > 0 else []),
    "maxProperties": ("object", lambda most: [{"minProperties": most + 1}]),
    "minimum": ("number", lambda least: [{"maximum": math.ceil(least) - 1}]),
    "maximum": ("number", lambda most: [{"minimum": math.floor(most) + 1}]),
    "exclusiveMinimum": ("number", lambda least: [{"maximum": least}]),
    "exclusiveMaximum": ("number", lambda most: [{"minimum": most}]),
}
_MOST = 24
_DEEPEST = 10
_STEPS = 4_000
CONDITIONS = frozenset({"not", "if", "then", "else", "dependencies", "dependentSchemas", "dependentRequired"})
_COMBINES = frozenset({REF, "allOf", "anyOf", "oneOf", *CONDITIONS})
_OPAQUE = frozenset({DYNAMIC_REF, RECURSIVE_REF, "unevaluatedProperties", "unevaluatedItems"})


class DecodingForm:
    """Expands subschemas of one document into plain alternatives; sets `narrower` once they may exclude a valid value.

    `apart` says that the branches of every `oneOf` are known to have no value in common.
    """

    def __init__(self, root: Mapping[str, Any], *, branches_are_disjoint: bool = False) -> None:
        self.narrower = False
        self._branches_are_disjoint = branches_are_disjoint
        self._root = root
        self._steps = 0

    def of(self, sub: Json, depth: int = 0, within: list[PlainSchema] | None = None) -> list[PlainSchema]:
        """Return the alternatives of a subschema within given ones; none where it cannot be expanded.

        >>> either = {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"}
        >>> DecodingForm({}).of(either)[0]["properties"]
        {'a': {}}
        """
        forms = [{}] if within is None else within
        if not isinstance(sub, Mapping):
            return [] if sub is False else forms
        target = lookup(self._root, sub[REF]) if REF in sub else True
        if self._is_too_complex(depth) or target is None or not _OPAQUE.isdisjoint(sub):
            self.narrower = True
            return []
        forms = self._intersections(forms, [_own_keywords(sub)], depth)
        for part in (target, *sub.get("allOf", ())):
            forms = self.of(part, depth + 1, forms)
        if "anyOf" in sub:
            forms = self._limited([form for each in sub["anyOf"] for form in self.of(each, depth + 1, forms)])
        if "oneOf" in sub:
            forms = self._limited(
                [form for at in range(len(sub["oneOf"])) for form in self._of_one_branch(forms, sub, at, depth)]
            )
        return self._limited(self._split_by_conditions(forms, sub, depth))

    def without(self, form: PlainSchema, other: Json, depth: int = 0) -> list[PlainSchema]:
        """Return alternatives within a form without values of another schema; the form itself where they are disjoint.

        >>> DecodingForm({}).without({"enum": ["a", "b"]}, {"const": "a"})
        [{'enum': ['b']}]
        """
        if not isinstance(other, Mapping):
            return [form] if other is False else []
        if self._is_too_complex(depth):
            self.narrower = True
            return []
        remaining: list[PlainSchema] = []
        was_narrower = self.narrower
        for left in self._negations(form, other, depth):
            if left == [form]:
                self.narrower = was_narrower  # the form and the schema are disjoint: no alternative was excluded
                return left
            remaining += [each for each in left if each not in remaining]
        self.narrower = self.narrower or not can_negate(form, other)
        return self._limited(remaining)

    def _is_too_complex(self, depth: int) -> bool:
        self._steps += 1
        return depth > _DEEPEST or self._steps > _STEPS

    def _limited(self, forms: list[PlainSchema]) -> list[PlainSchema]:
        self.narrower = self.narrower or len(forms) > _MOST
        return forms[:_MOST]

    def _intersections(self, forms: list[PlainSchema], others: Iterable[PlainSchema], depth: int) -> list[PlainSchema]:
        """Return the intersections of each of the forms with each of the others."""
        made: list[PlainSchema] = []
        rights = list(others)
        for form in forms:
            for other in rights:
                try:
                    made.append(self._with_merged_properties(intersection(form, other), depth))
                except Unsatisfiable:
                    continue
                except NoNormalForm:
                    self.narrower = True
        return self._limited(made)

    def _with_merged_properties(self, form: PlainSchema, depth: int) -> PlainSchema:
        """Return the form with properties that have several values in more than one alternative."""
        properties = form.get("properties", {})
        several = [name for name, each in properties.items() if isinstance(each, Mapping) and each.keys() == {"allOf"}]
        for name in several:
            if any(self._is_literal(part) for part in properties[name]["allOf"]):
                left = self.of(properties[name], depth + 1)
                if not left:
                    raise Unsatisfiable
                properties = {**properties, name: choice(left)}
        if several:
            return {**form, "properties": properties}
        return form

    def _is_literal(self, part: Json) -> bool:
        target = lookup(self._root, part[REF]) if isinstance(part, Mapping) and REF in part else part
        return isinstance(target, Mapping) and ("enum" in target or "const" in target)

    def _without_all(self, forms: list[PlainSchema], others: Iterable[Json], depth: int) -> list[PlainSchema]:
        for other in others:
            forms = self._limited([each for form in forms for each in self.without(form, other, depth + 1)])
        return forms

    def _of_one_branch(
        self, forms: list[PlainSchema], sub: Mapping[str, Any], number: int, depth: int
    ) -> list[PlainSchema]:
        """Return the alternatives of one branch of a `oneOf` that no other branch accepts."""
        branches = sub["oneOf"]
        alternatives = self.of(branches[number], depth + 1, forms)
        if self._branches_are_disjoint:
            return alternatives
        return self._without_all(alternatives, [each for at, each in enumerate(branches) if at != number], depth)

    def _split_by_conditions(self, forms: list[PlainSchema], sub: Mapping[str, Any], depth: int) -> list[PlainSchema]:
        """Return the forms split by `if`, dependencies and `not`."""
        if "if" in sub:
            meeting = self.of(sub["if"], depth + 1, forms)
            others = self._without_all(forms, [sub["if"]], depth)
            with_then = self.of(sub.get("then", True), depth + 1, meeting)
            with_else = self.of(sub.get("else", True), depth + 1, others)
            forms = with_then + with_else
        for keyword in ("dependencies", "dependentSchemas", "dependentRequired"):
            for name, dependency in sub.get(keyword, {}).items():
                then: Json = {"required": dependency} if isinstance(dependency, list) else dependency
                with_key = self._intersections(forms, [{"required": [name], "type": ["object"]}], depth)
                without_key = self._intersections(forms, [no_value_of(name)], depth)
                forms = self.of(then, depth + 1, with_key) + without_key
        if "not" in sub:
            forms = self._without_all(forms, [sub["not"]], depth)
        return forms

    def _negations(self, form: PlainSchema, other: Mapping[str, Any], depth: int) -> Iterable[list[PlainSchema]]:
        """Yield, for each keyword of the other schema, the alternatives within the form that violate it."""
        if REF in other:
            target = lookup(self._root, other[REF])
            yield [] if target is None else self.without(form, target, depth + 1)
            return  # keywords beside a reference count in some drafts only
        for part in other.get("allOf", ()):
            yield self.without(form, part, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            if keyword in other:
                yield self._without_all([form], other[keyword], depth)
        if "not" in other:
            yield self.of(other["not"], depth + 1, [form])
        if "pattern" in other and form.get("type") == ["string"] and "pattern" in form:
            yield [form] if are_apart(form["pattern"], other["pattern"]) else []
        for one in keyword_negations(form, other):
            yield self._intersections([form], [one], depth)
        yield from self._by_property(form, other, depth)
        if isinstance(items := other.get("items"), Mapping) and "prefixItems" not in other:
            yield self._by_items(form, items, depth)

    def _by_property(self, form: PlainSchema, other: Mapping[str, Any], depth: int) -> Iterable[list[PlainSchema]]:
        """Yield alternatives with a property whose value the other schema does not accept."""
        if not {"properties", "additionalProperties", "patternProperties"} & other.keys():
            return
        required = form.get("required", [])
        for name in dict.fromkeys([*other.get("properties", ()), *form.get("properties", ()), *required]):
            try:
                mine = property_schema(form, name)
                there = property_schema(other, name)
            except NoNormalForm:
                self.narrower = True
                continue
            if there is True or there == {} or (name in other.get("required", ()) and _is_unlisted(name, form)):
                continue
            left = self._less(mine, there, depth)
            if left is mine and name in required and form.get("type") == ["object"]:
                yield [form]
            elif left is not None and left is not False:
                narrowed = {**form, "properties": {**form.get("properties", {}), name: left}}
                yield self._intersections([narrowed], [{"type": ["object"], "required": [name]}], depth)

    def _by_items(self, form: PlainSchema, items: Mapping[str, Any], depth: int) -> list[PlainSchema]:
        """Return alternatives with items that the other schema does not accept."""
        mine = form.get("items", True)
        if isinstance(mine, list) or "prefixItems" in form:
            return []
        left = self._less(mine, items, depth)
        if left is None or left is False:
            return []
        if left is mine and form.get("minItems", 0) > 0 and form.get("type") == ["array"]:
            return [form]
        return self._intersections([{**form, "items": left}], [{"type": ["array"], "minItems": 1}], depth)

    def _less(self, mine: Json, other: Json, depth: int) -> Json:
        """Return the schema of a part without the values of another one.

        The same object if they have no value in common, None if nothing remains.
        """
        if other is False:
            return mine
        before = self.of(mine, depth + 1)
        after = self._without_all(before, [other], depth)
        if not after:
            return None
        return mine if before == after else choice(after)


def _is_unlisted(name: str, form: PlainSchema) -> bool:
    """Return whether an object lists other keys but not this one: decoding closes such objects."""
    listed = {*form.get("properties", ()), *form.get("required", ())}
    return bool(listed) and name not in listed


def choice(forms: list[PlainSchema]) -> PlainSchema:
    """Return one schema of several alternatives."""
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def merged(sub: Mapping[str, Any], root: Mapping[str, Any]) -> PlainSchema | None:
    """Merge several schemas of one value into a choice of plain alternatives.

    None where that would exclude values.

    The compiler has accepted the schema before, so the branches of its `oneOf` are disjoint.

    >>> merged({"required": ["a"], "allOf": [{"properties": {"a": {"type": "null"}}}]}, {})
    {'required': ['a'], 'properties': {'a': {'type': 'null'}}}
    """
    form = DecodingForm(root, branches_are_disjoint=True)
    alternatives = form.of(sub)
    if form.narrower or not alternatives or "allOf" in choice(alternatives):
        return None
    return choice(alternatives)


def _own_keywords(sub: Mapping[str, Any]) -> PlainSchema:
    """Return the keywords of a schema itself, in one spelling."""
    own = {key: value for key, value in sub.items() if key not in _COMBINES | ANNOTATIONS | {*DEFINITIONS}}
    if "const" in own:
        literal = own.pop("const")
        own["enum"] = common_values([literal], own.get("enum", [literal]))
    if isinstance(own.get("type"), str):
        own["type"] = [own["type"]]
    return own
