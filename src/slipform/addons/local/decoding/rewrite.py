"""Rewrite keywords that the grammar compiler does not accept, negation included, as choices of plain alternatives.

`not`, conditions, dependencies and most `oneOf` become choices between plain alternatives (see `forms`). Where that
excludes no valid value, every answer is decoded under it; where it does, only an answer that must be `exact`.
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

_MAX_CHECKS = 400
"""The most places that are checked."""

_DEEPEST = 8
_TRIGGERS = CONDITIONS - {"then", "else"}


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A rewritten schema, the places that changed, and those that exclude valid values."""

    schema: dict[str, Any]
    origins: Mapping[str, Pointer] = field(default_factory=dict)
    """The place in the original schema of each new definition."""
    narrowed: tuple[Pointer, ...] = ()
    is_root_rewritten: bool = False
    """Whether the root itself was rewritten."""

    def origin(self, pointer: Pointer) -> Pointer:
        """Return the place in the original schema of a place in the rewritten one."""
        if pointer[:1] == ("$defs",) and pointer[1:2] and pointer[1] in self.origins:
            return self.origins[pointer[1]]
        if self.is_root_rewritten and pointer[:1] and pointer[0] not in DEFINITIONS:
            return ()
        return pointer


def rewrite_schema(schema: Mapping[str, Any], *, exact: bool = False) -> Rewritten:
    """Return the schema with plain alternatives in place of `not`, conditions, dependencies and open `oneOf`.

    >>> rewrite_schema({"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["b"]}}).schema
    {'type': ['object'], 'properties': {'a': {}}, 'additionalProperties': False}
    """
    if problem(schema) is None:
        return Rewritten(dict(schema))
    if _hides_siblings(schema):
        schema = _references_alone(schema)
    rewriter = _Rewriter(schema, exact)
    result = rewriter.rewritten(schema, ())
    if result and rewriter.definitions:
        result["$defs"] = {**result.get("$defs", {}), **rewriter.definitions}
    if exact:
        result = closed_up(result)
        if result is False:
            return rewrite_schema(schema)
    return Rewritten(result, rewriter.origins, tuple(rewriter.narrowed), rewriter.is_root_rewritten)


def _hides_siblings(schema: Mapping[str, Any]) -> bool:
    """Return whether keywords beside a reference are ignored, as in older drafts, and nothing refers to them."""
    targets = [str(sub[REF]) for _, sub in subschemas(schema) if REF in sub]
    try:
        hidden = compile_schema(schema).reference_hides_siblings
    except SchemaError:  # validating the answer raises the same error
        return False
    return hidden and all(target.startswith(("#/definitions/", "#/$defs/")) for target in targets)


def _references_alone(sub: Json, _: Pointer = ()) -> Json:
    if not isinstance(sub, Mapping):
        return sub
    keywords = {REF, "$schema", *DEFINITIONS} if REF in sub else sub.keys()
    return with_children({key: value for key, value in sub.items() if key in keywords}, _references_alone, CONTENTS)


@dataclass(slots=True)
class _Rewriter:
    root: Mapping[str, Any]
    exact: bool
    definitions: dict[str, Any] = field(default_factory=dict)
    """The rewritten parts, as definitions, so that a recursive part can refer to itself."""
    origins: dict[str, Pointer] = field(default_factory=dict)
    narrowed: list[Pointer] = field(default_factory=list)
    is_root_rewritten: bool = False
    names: dict[int, str] = field(default_factory=dict)
    open_choices: dict[int, bool] = field(default_factory=dict)
    referents: list[object] = field(default_factory=list)
    """The objects behind the identities above, referenced so that no identity is reused."""

    def rewritten(self, sub: Json, at: Pointer, depth_rewritten: int = 0) -> Json:
        """Return the subschema and everything under it, rewritten where needed.

        `depth_rewritten` counts the rewritten parts around it; `at` is then the place of the first of them.
        """
        if not isinstance(sub, Mapping):
            return sub
        if id(sub) in self.names:
            return reference_to("$defs", self.names[id(sub)])
        if not self._needs_rewriting(sub):
            return self._children_rewritten(sub, at, depth_rewritten)
        choice_schema = self._alternatives(sub, at) if depth_rewritten < _DEEPEST else None
        if choice_schema is None and not (self.exact and self._is_open(sub.get("oneOf"))):
            return self._children_rewritten(sub, at, depth_rewritten)
        if choice_schema is None or choice_schema is False:
            # A branch of a `oneOf` must not be narrowed alone: a value that only it accepted may match two without it.
            return False
        if sub is self.root:
            self.is_root_rewritten = True
            return self._children_rewritten(choice_schema, at, depth_rewritten + 1)
        self.referents.append(sub)
        name = self.names[id(sub)] = f"rewritten-{len(self.names)}"
        self.origins[name] = at
        self.definitions[name] = self._children_rewritten(choice_schema, at, depth_rewritten + 1)
        return {**reference_to("$defs", name), **{key: sub[key] for key in DEFINITIONS if key in sub}}

    def _children_rewritten(self, sub: Mapping[str, Any], at: Pointer, depth_rewritten: int) -> dict[str, Any]:
        def part(each: Json, steps: Pointer) -> Json:
            child_depth = 0 if steps[0] in DEFINITIONS else depth_rewritten
            return self.rewritten(each, at if child_depth else (*at, *steps), child_depth)

        return with_children(sub, part, CONTENTS)

    def _needs_rewriting(self, sub: Json, depth: int = 0, *, shared: bool = False) -> bool:
        """Return whether a schema has keywords that the compiler does not accept, alone or `shared` with others.

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
        return any(self._needs_rewriting(each, depth + 1, shared=True) for each in parts)

    def _is_open(self, branches: list[Json] | None) -> bool:
        """Return whether the compiler cannot distinguish the branches of a `oneOf`."""
        if branches is None:
            return False
        if id(branches) not in self.open_choices and len(self.open_choices) < _MAX_CHECKS:
            definitions = {key: self.root[key] for key in DEFINITIONS if key in self.root}
            self.referents.append(branches)
            self.open_choices[id(branches)] = problem({**definitions, "oneOf": branches}) is not None
        return self.open_choices.get(id(branches), False)

    def _alternatives(self, sub: Mapping[str, Any], at: Pointer) -> dict[str, Any] | Literal[False] | None:
        """Return the schema as a choice of plain alternatives.

        False if no value is valid, None if it cannot be written so.
        """
        forms = DecodingForm(self.root)
        alternatives = forms.of(sub)
        if forms.narrower:
            if not alternatives or not self.exact:
                return None
            self.narrowed.append(at)
        if not alternatives:
            return None if sub is self.root else False
        root_keywords = (*DEFINITIONS, "$schema") if sub is self.root else ()
        return {**choice(alternatives), **{key: sub[key] for key in root_keywords if key in sub}}
