"""Check single values, growing or complete, against one alternative of a schema, and describe faults."""

from __future__ import annotations

from typing import Any

from slipform.text.resolve_plan import Alternative, Leaf, Node


def kind_of(value: Any) -> str:
    """Return the JSON type of a value; integers and numbers without a fraction are "integer"."""
    if isinstance(value, str):
        return "string"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, dict):
        return "object"
    if isinstance(value, list):
        return "array"
    if isinstance(value, int) or value.is_integer():
        return "integer"
    return "number"


def equal(left: Any, right: Any) -> bool:
    """Equal as JSON, without recursion: 1 is 1.0, but true is not 1.

    >>> equal([1, {"a": 2.0}], [1.0, {"a": 2}]), equal([True], [1])
    (True, False)
    """
    if not isinstance(left, (dict, list)):
        return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)
    pairs: list[tuple[Any, Any]] = [(left, right)]
    while pairs:
        a, b = pairs.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            pairs.extend((a[key], b[key]) for key in a)
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            pairs.extend(zip(a, b, strict=True))
        elif isinstance(a, (dict, list)) or a != b or isinstance(a, bool) != isinstance(b, bool):
            return False
    return True


def kind_fault(kind: str, alternative: Alternative) -> str | None:
    """Return the fault in the type, if any."""
    for leaf in alternative.leaves:
        if leaf.types is not None and kind not in leaf.types:
            expected = " or ".join(sorted(leaf.types - {"integer"} if "number" in leaf.types else leaf.types))
            return f"expected {expected}, found {kind}"
    return None


def closing_fault(container: Any, alternative: Alternative) -> str | None:
    """Return the fault in a closed container as a whole; its children are not checked."""
    for leaf in alternative.leaves:
        if leaf.values is not None and not any(equal(container, allowed) for allowed in leaf.values):
            return "is none of the allowed values"
        if isinstance(container, dict):
            for key in leaf.required:
                if key not in container:
                    return f"lacks the required property {key!r}"
        if leaf.limits:
            what = "Properties" if isinstance(container, dict) else "Items"
            if len(container) < leaf.limits.get("min" + what, 0):
                return f"has fewer than {leaf.limits['min' + what]} {what.lower()}"
            if len(container) > leaf.limits.get("max" + what, len(container)):
                return f"has more than {leaf.limits['max' + what]} {what.lower()}"
    return None


def scalar_fault(value: Any, kind: str, alternative: Alternative) -> str | None:
    """Return the fault of a complete scalar in the plain keywords, if any."""
    fault = kind_fault(kind, alternative)
    if fault is not None:
        return fault
    for leaf in alternative.leaves:
        if leaf.values is not None and not any(equal(value, allowed) for allowed in leaf.values):
            return "is none of the allowed values"
        if leaf.limits and not _is_within_limits(value, kind, leaf):
            return "is outside its limits"
    return None


def _is_within_limits(value: Any, kind: str, leaf: Leaf) -> bool:
    """Whether a scalar is within the lengths and bounds of a leaf."""
    limits = leaf.limits
    if kind == "string":
        return bool(limits.get("minLength", 0) <= len(value) <= limits.get("maxLength", len(value)))
    if kind not in ("integer", "number"):
        return True
    return not (
        value < limits.get("minimum", value)
        or value > limits.get("maximum", value)
        or ("exclusiveMinimum" in limits and value <= limits["exclusiveMinimum"])
        or ("exclusiveMaximum" in limits and value >= limits["exclusiveMaximum"])
    )


def count_matches(value: Any, kind: str, node: Node) -> int:
    """Return how many alternatives of the node a complete scalar matches; at most one if they are not exclusive."""
    if kind in node.any_of:
        return 1
    count = 0
    for alternative in node.alternatives:
        if scalar_fault(value, kind, alternative) is None and alternative.accepts(value):
            count += 1
            if not node.exclusive:
                break
    return count


def may_become(text: str, alternative: Alternative) -> bool:
    """Return whether a string that begins like this may become one that the alternative allows."""
    for leaf in alternative.leaves:
        if leaf.values is not None and not any(
            isinstance(value, str) and value.startswith(text) for value in leaf.values
        ):
            return False
        if leaf.limits and len(text) > leaf.limits.get("maxLength", len(text)):
            return False
    return True


def may_be_number(node: Node, is_negative: bool) -> bool:
    """Whether a number that has just begun is allowed there; -0 is not less than zero."""
    if "number" in node.any_of or "integer" in node.any_of:
        return True
    for alternative in node.alternatives:
        if (alternative.admits("number") or alternative.admits("integer")) and not (
            is_negative and any(_is_positive(leaf) for leaf in alternative.leaves)
        ):
            return True
    return False


def _is_positive(leaf: Leaf) -> bool:
    """Whether only numbers above zero are within its limits."""
    return bool(leaf.limits.get("minimum", 0) > 0 or leaf.limits.get("exclusiveMinimum", -1) >= 0)


def kind_message(kind: str, alternatives: list[Alternative]) -> str:
    """Return why a value of that type matches none of these alternatives."""
    faults = (kind_fault(kind, each) for each in alternatives)
    return next((message for message in faults if message), "is not allowed here")


def scalar_message(value: Any, alternatives: list[Alternative]) -> str:
    """Return why that scalar matches none of these alternatives."""
    if not alternatives:
        return "is not allowed here"
    faults = (scalar_fault(value, kind_of(value), each) for each in alternatives)
    return next((message for message in faults if message), "does not match the schema")
