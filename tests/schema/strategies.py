"""Schemas for property tests: small, well-formed, of every common shape."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "title", "default", "$ref", "description", "odd name"])
_ANNOTATIONS = st.fixed_dictionaries(
    {}, optional={"title": st.text(max_size=5), "description": st.text(max_size=30), "default": st.integers()}
)


def _leaves() -> st.SearchStrategy[dict[str, Any]]:
    plain = st.sampled_from(["string", "boolean", "null", "integer", "number"]).map(lambda kind: {"type": kind})
    bounded = st.tuples(st.integers(-50, 50), st.integers(0, 50)).map(
        lambda pair: {"type": "integer", "minimum": pair[0], "maximum": pair[0] + pair[1]}
    )
    text = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(
        lambda pair: {"type": "string", "minLength": pair[0], "maxLength": pair[0] + pair[1]}
    )
    values = st.lists(st.text(max_size=4) | st.integers() | st.none(), min_size=1, max_size=4)
    named = values.map(lambda options: {"enum": options})
    formats = st.sampled_from(["date", "date-time", "email", "uuid", "uri", "ipv4"]).map(
        lambda name: {"type": "string", "format": name}
    )
    patterns = st.sampled_from(["^[a-z]+$", "^A-[0-9]{3}$", "x|y", "^(ab)?c+$", r"^\d{4}$"]).map(
        lambda pattern: {"type": "string", "pattern": pattern}
    )
    return st.one_of(plain, bounded, text, named, formats, patterns, st.just({}), st.just({"$ref": "#/$defs/d"}))


def _object(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    def build(properties: dict[str, Any], extra: Any) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": properties,
            "required": sorted(properties)[::2],
            "additionalProperties": extra,
        }

    return st.builds(build, st.dictionaries(NAMES, inner, max_size=3), st.booleans() | inner)


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Documents with a definition `d` that they may refer to; all of them can be satisfied."""
    node = st.recursive(
        _leaves(),
        lambda inner: st.one_of(
            _object(inner),
            st.builds(lambda sub, least: {"type": "array", "items": sub, "minItems": least}, inner, st.integers(0, 3)),
            st.lists(inner, min_size=1, max_size=3).map(lambda subs: {"anyOf": subs}),
            st.lists(inner, min_size=1, max_size=2).map(lambda subs: {"type": "array", "prefixItems": subs}),
        ),
        max_leaves=8,
    )
    annotated = st.builds(lambda sub, notes: {**notes, **sub}, node, _ANNOTATIONS)
    return st.builds(lambda sub, leaf: {**sub, "$defs": {"d": leaf, "unused": leaf}}, annotated, _object(st.just({})))
