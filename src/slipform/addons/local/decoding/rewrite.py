"""Rewrite what the grammar compiler does not take, negation included, as choices of plain alternatives.

`not`, conditions, dependencies and most `oneOf` become choices between plain alternatives (see `forms`). Where that
leaves no valid value out, it is done for every answer; where it does, only for one that has to be `certain`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from slipform.addons.local.decoding.forms import CONDITIONS, DecodingForm, choice
from slipform.addons.local.decoding.weaken import closed_up, problem
from slipform.errors import SchemaError
from slipform.schema.document import (
    CONTENTS,
    DEFINITIONS,
    REF,
    Json,
    Pointer,
    lookup,
    reference_to,
    subschemas,
    with_children,
)
from slipform.schema.keywords import ANNOTATIONS
from slipform.schema.validator import compile_schema

_MOST = 400
"""How many places are looked at."""

_DEEPEST = 8
_TRIGGERS = CONDITIONS - {"then", "else"}


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The schema, what of it was rewritten, and where that allows less than the schema."""

    schema: dict[str, Any]
    origins: Mapping[str, Pointer] = field(default_factory=dict)
    """For each new definition, where in the schema it comes from."""
    narrowed: tuple[Pointer, ...] = ()

    whole: bool = False
    """Whether the root itself was rewritten."""

    def origin(self, pointer: Pointer) -> Pointer:
        """Return the place in the original schema of something that has been rewritten."""
        if pointer[:1] == ("$defs",) and pointer[1:2] and pointer[1] in self.origins:
            return self.origins[pointer[1]]
        if self.whole and pointer[:1] and pointer[0] not in DEFINITIONS:
            return ()
        return pointer


def settle(schema: Mapping[str, Any], *, certain: bool = False) -> Rewritten:
    """The schema without `not`, conditions, dependencies and open `oneOf`, as far as plain alternatives can say them.

    >>> settle({"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["b"]}}).schema
    {'type': ['object'], 'properties': {'a': {}}, 'additionalProperties': False}
    """
    if problem(schema) is None:
        return Rewritten(dict(schema))
    if _hides_siblings(schema):
        schema = _references_alone(schema)
    settling = _Settling(schema, certain)
    result = settling.into(schema, ())
    if result and settling.made:
        result["$defs"] = {**result.get("$defs", {}), **settling.made}
    if certain:
        result = closed_up(result)
        if result is False:
            return settle(schema)
    return Rewritten(result, settling.origins, tuple(settling.narrowed), settling.whole)


def _hides_siblings(schema: Mapping[str, Any]) -> bool:
    """Whether what stands beside a reference counts for nothing, as in older drafts, and nothing refers to it."""
    targets = [str(sub[REF]) for _, sub in subschemas(schema) if REF in sub]
    try:
        hidden = compile_schema(schema).reference_hides_siblings
    except SchemaError:  # the caller learns of it when the answer is validated
        return False
    return hidden and all(target.startswith(("#/definitions/", "#/$defs/")) for target in targets)


def _references_alone(sub: Json, _: Pointer = ()) -> Json:
    if not isinstance(sub, Mapping):
        return sub
    keywords = {REF, "$schema", *DEFINITIONS} if REF in sub else sub.keys()
    return with_children({key: value for key, value in sub.items() if key in keywords}, _references_alone, CONTENTS)


@dataclass(slots=True)
class _Settling:
    root: Mapping[str, Any]
    certain: bool
    made: dict[str, Any] = field(default_factory=dict)
    """What was rewritten, as definitions, so that a recursive part can refer to itself."""
    origins: dict[str, Pointer] = field(default_factory=dict)
    narrowed: list[Pointer] = field(default_factory=list)
    whole: bool = False
    names: dict[int, str] = field(default_factory=dict)
    open_choices: dict[int, bool] = field(default_factory=dict)
    referents: list[object] = field(default_factory=list)
    """The objects behind the identities above, referenced so that no identity is reused."""

    def into(self, sub: Json, at: Pointer, inside: int = 0) -> Json:
        """Return the subschema and all that is under it, rewritten where needed.

        `inside` counts the parts around it that were rewritten; `at` is then where the first of them was.
        """
        if not isinstance(sub, Mapping):
            return sub
        if id(sub) in self.names:
            return reference_to("$defs", self.names[id(sub)])
        if not self._needs(sub):
            return self._under(sub, at, inside)
        plain = self._plain(sub, at) if inside < _DEEPEST else None
        if plain is None and not (self.certain and self._is_open(sub.get("oneOf"))):
            return self._under(sub, at, inside)
        if plain is None or plain is False:
            # Branches of a `oneOf` may not be narrowed one by one: what only one of them took, two might have.
            return False
        if sub is self.root:
            self.whole = True
            return self._under(plain, at, inside + 1)
        self.referents.append(sub)
        name = self.names[id(sub)] = f"settled-{len(self.names)}"
        self.origins[name] = at
        self.made[name] = self._under(plain, at, inside + 1)
        return {**reference_to("$defs", name), **{key: sub[key] for key in DEFINITIONS if key in sub}}

    def _under(self, sub: Mapping[str, Any], at: Pointer, inside: int) -> dict[str, Any]:
        def part(each: Json, steps: Pointer) -> Json:
            still = 0 if steps[0] in DEFINITIONS else inside
            return self.into(each, at if still else (*at, *steps), still)

        return with_children(sub, part, CONTENTS)

    def _needs(self, sub: Json, depth: int = 0, *, shared: bool = False) -> bool:
        """Whether a value's schema says something that the compiler does not take, by itself or `shared` with others.

        Several schemas of one value must be merged before any of them is rewritten.
        """
        if not isinstance(sub, Mapping) or depth > _DEEPEST:
            return False
        if not _TRIGGERS.isdisjoint(sub) or self._is_open(sub.get("oneOf")):
            return True
        if not shared and "allOf" not in sub and len(sub.keys() - ANNOTATIONS - {*DEFINITIONS}) < 2:
            return False
        parts = [each for key in ("allOf", "anyOf", "oneOf") for each in sub.get(key, ())]
        if REF in sub:
            parts.append(lookup(self.root, sub[REF]))
        return any(self._needs(each, depth + 1, shared=True) for each in parts)

    def _is_open(self, branches: list[Json] | None) -> bool:
        """Whether the compiler cannot distinguish the branches of a `oneOf`."""
        if branches is None:
            return False
        if id(branches) not in self.open_choices and len(self.open_choices) < _MOST:
            definitions = {key: self.root[key] for key in DEFINITIONS if key in self.root}
            self.referents.append(branches)
            self.open_choices[id(branches)] = problem({**definitions, "oneOf": branches}) is not None
        return self.open_choices.get(id(branches), False)

    def _plain(self, sub: Mapping[str, Any], at: Pointer) -> dict[str, Any] | Literal[False] | None:
        """Return the schema as a choice of plain alternatives.

        False if no value fits, None if it cannot be written so.
        """
        forms = DecodingForm(self.root)
        alternatives = forms.of(sub)
        if forms.narrower:
            if not alternatives or not self.certain:
                return None
            self.narrowed.append(at)
        if not alternatives:
            return None if sub is self.root else False
        root_keywords = (*DEFINITIONS, "$schema") if sub is self.root else ()
        return {**choice(alternatives), **{key: sub[key] for key in root_keywords if key in sub}}
