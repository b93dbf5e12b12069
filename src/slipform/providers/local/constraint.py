"""A JSON Schema → a grammar that the engine decodes under.

The engine goes on *unconstrained* when a grammar does not compile, so every grammar is compiled here first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from slipform.errors import LocalModelError, UnsupportedSchemaError
from slipform.ir import ModelWarning
from slipform.providers.local.wrap import needs_wrapping, wrap

Json: TypeAlias = Any

# Enough for pretty-printing eight levels deep, too little for a small model to ramble in.
_WHITESPACE = r"[\x20\x0A]{0,24}"
_CHARS_PER_TOKEN = 3
_SHORTEST = 24
_MOST_ITEMS = 12

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLES = ("items", "additionalProperties", "then", "else", "additionalItems")
_OPENS = ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames")
_COMBINES = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "$dynamicRef", "$recursiveRef")


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar that is known to compile; `warnings` names what it leaves to the validator."""

    grammar: str
    warnings: tuple[ModelWarning, ...] = ()
    wrapped: bool = False
    """Whether the answer comes under one key; see `wrap`."""

    @property
    def exact(self) -> bool:
        """Whether every answer under this grammar is valid, if it is not cut off."""
        return not self.warnings


def constrain(schema: Mapping[str, Any], max_tokens: int) -> Constraint:
    """The strongest grammar for `schema` whose answers can close within `max_tokens`.

    >>> constrain({"type": "array", "uniqueItems": True}, 100).warnings[0].code
    'constraint_weakened'
    """
    wrapped = needs_wrapping(schema)
    bounded = _bounded(wrap(schema) if wrapped else schema, max_tokens)
    exact = _with_options(bounded, lenient=False)
    if (problems := _problems(exact)) is None:
        return Constraint(_spell(exact), wrapped=wrapped)
    lenient = _with_options(bounded, lenient=True)
    if (fatal := _problems(lenient)) is not None:
        raise UnsupportedSchemaError(
            f"The embedded model cannot decode under this schema: {fatal}",
            hint="Take that keyword out of the schema, or send the request to another provider.",
        )
    said = f"Decoding could not be held to part of the schema ({problems}); the answer is checked against all of it."
    return Constraint(_spell(lenient), (ModelWarning("constraint_weakened", said),), wrapped)


def any_object(max_tokens: int) -> Constraint:
    """The grammar of JSON mode: an object of any shape."""
    return constrain({"type": "object"}, max_tokens)


def _spell(schema: Json) -> str:
    return "%llguidance {}\nstart: %json " + json.dumps(schema)


def _with_options(schema: Mapping[str, Any], *, lenient: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"whitespace_pattern": _WHITESPACE}
    if lenient:
        options["lenient"] = True
    return {**schema, "x-guidance": options}


def _problems(schema: Mapping[str, Any]) -> str | None:
    try:
        from llguidance import LLMatcher
    except ImportError:
        raise LocalModelError(
            "The embedded model needs llguidance, which is not installed", hint="Run `pip install 'slipform[local]'`."
        ) from None
    try:
        failed, messages = LLMatcher.validate_grammar_with_warnings(LLMatcher.grammar_from_json_schema(dict(schema)))
    except ValueError as error:
        return str(error)
    return "; ".join(messages) if failed else None


def _bounded(schema: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
    """Narrow what is open-ended, so that a small model's answer closes before the token limit.

    Everything valid under the narrowed schema is valid under the caller's.
    """
    strings = sum(1 for sub in _subschemas(schema) if _is_open_string(sub))
    longest = max(_SHORTEST, max_tokens * _CHARS_PER_TOKEN // max(2, 2 * strings))
    closable = not any("allOf" in sub or "$dynamicRef" in sub for sub in _subschemas(schema))

    def narrow(sub: Mapping[str, Any], branch: bool) -> dict[str, Any]:
        changed = dict(sub)
        if _is_open_string(sub):
            changed["maxLength"] = max(longest, sub.get("minLength", 0))
        if sub.get("type") == "array" and "maxItems" not in sub:
            changed["maxItems"] = max(_MOST_ITEMS, sub.get("minItems", 0), len(sub.get("prefixItems", ())))
        if closable and not branch and "properties" in sub and not any(key in sub for key in (*_OPENS, *_COMBINES)):
            changed["additionalProperties"] = False
        return changed

    narrowed: dict[str, Any] = _rewrite(schema, narrow, branch=False)
    return narrowed


def _is_open_string(sub: Mapping[str, Any]) -> bool:
    fixed = ("maxLength", "enum", "const", "pattern", "format")
    return sub.get("type") == "string" and not any(key in sub for key in fixed)


def _subschemas(schema: Json) -> Iterator[Mapping[str, Any]]:
    pending = [schema]
    while pending:
        sub = pending.pop()
        if not isinstance(sub, Mapping):
            continue
        yield sub
        for key in _MAPS:
            if isinstance(held := sub.get(key), Mapping):
                pending.extend(held.values())
        for key in _LISTS:
            if isinstance(held := sub.get(key), list):
                pending.extend(held)
        pending.extend(sub[key] for key in _SINGLES if key in sub)


def _rewrite(sub: Json, change: Callable[[Mapping[str, Any], bool], dict[str, Any]], *, branch: bool) -> Any:
    """Rebuild a schema with `change` applied to every subschema, by keyword: never to a property that looks like one.

    `branch` is true inside a combination whose parent speaks of the same object.
    """
    if not isinstance(sub, Mapping):
        return sub
    changed = change(sub, branch)
    for key in _MAPS:
        if isinstance(held := changed.get(key), Mapping):
            inside = branch if key == "dependentSchemas" else False
            changed[key] = {name: _rewrite(each, change, branch=inside) for name, each in held.items()}
    shared = branch or "properties" in sub
    for key in _LISTS:
        if isinstance(held := changed.get(key), list):
            inside = shared and key != "prefixItems"
            changed[key] = [_rewrite(each, change, branch=inside) for each in held]
    for key in _SINGLES:
        if key in changed:
            inside = shared and key in ("then", "else")
            changed[key] = _rewrite(changed[key], change, branch=inside)
    return changed
