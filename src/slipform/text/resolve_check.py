"""Closed values against the plan: each container is looked at once, and never by recursion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slipform.text.resolve_plan import Alternative, Leaf, Node


def kind_of(value: Any) -> str:
    """The JSON type of a value; integers and numbers without a fraction are "integer"."""
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
    return "integer" if isinstance(value, int) or value.is_integer() else "number"


def equal(left: Any, right: Any) -> bool:
    """Equal as JSON: 1 is 1.0, but true is not 1."""
    if isinstance(left, dict | list):
        return same_json(left, right)
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def same_json(left: Any, right: Any) -> bool:
    """The same for containers, without recursion."""
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
        elif isinstance(a, dict | list) or a != b or isinstance(a, bool) != isinstance(b, bool):
            return False
    return True


class Checker:
    """Says whether closed values match nodes, and remembers it for containers, by identity."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, int], tuple[Any, bool]] = {}
        """(container, node) to the verdict; the container is kept so that its identity stays its own."""

    def remember(self, value: Any, node: Node, verdict: bool) -> None:
        """Note a verdict that was reached while the container was open."""
        self.known[id(value), id(node)] = (value, verdict)

    def matches(self, value: Any, node: Node) -> bool:
        """Whether a closed value matches some alternative of the node."""
        if node.free:
            return True
        if not isinstance(value, dict | list):
            kind = kind_of(value)
            return any(_scalar_fits(value, kind, alternative) for alternative in node.alternatives)
        known = self.known.get((id(value), id(node)))
        if known is None:
            self._settle(value, node)
            known = self.known[id(value), id(node)]
        return known[1]

    def _settle(self, value: Any, node: Node) -> None:
        """Reach a verdict on a container after all containers in it."""
        work: list[tuple[Any, Node, bool]] = [(value, node, False)]
        while work:
            container, node, ready = work.pop()
            key = (id(container), id(node))
            if key in self.known:
                continue
            if ready:
                fits = any(self._container_fits(container, alternative) for alternative in node.alternatives)
                self.known[key] = (container, fits)
                continue
            work.append((container, node, True))
            for name, child in children(container):
                if isinstance(child, dict | list):
                    for alternative in node.alternatives:
                        inner = alternative.child(name)
                        if inner is not None and not inner.free:
                            work.append((child, inner, False))

    def _container_fits(self, container: Any, alternative: Alternative) -> bool:
        if not alternative.admits(kind_of(container)) or closing_fault(container, alternative) is not None:
            return False
        for name, child in children(container):
            node = alternative.child(name)
            if node is None or not self.matches(child, node):
                return False
        return True

    def explain(self, value: Any, node: Node) -> tuple[tuple[str | int, ...], str]:
        """Where in a closed value that does not match, and why; the place is exact as long as there is no choice."""
        path: list[str | int] = []
        while len(node.alternatives) == 1:
            alternative = node.alternatives[0]
            if not isinstance(value, dict | list):
                return tuple(path), scalar_fault(value, kind_of(value), alternative) or "does not match the schema"
            fault = kind_fault(kind_of(value), alternative) or closing_fault(value, alternative)
            if fault is not None:
                return tuple(path), fault
            for name, child in children(value):
                inner = alternative.child(name)
                if inner is None:
                    return (*path, name), "is not allowed here"
                if not self.matches(child, inner):
                    path.append(name)
                    value, node = child, inner
                    break
            else:
                break
        return tuple(path), "matches none of the alternatives" if node.alternatives else "is not allowed here"


def children(container: Any) -> Iterable[tuple[str | int, Any]]:
    """The names and values in a container."""
    if isinstance(container, dict):
        return list(container.items())
    return list(enumerate(container))


def kind_fault(kind: str, alternative: Alternative) -> str | None:
    """What is wrong with the type, if anything."""
    for leaf in alternative.leaves:
        if leaf.types is not None and kind not in leaf.types:
            expected = " or ".join(sorted(leaf.types - {"integer"} if "number" in leaf.types else leaf.types))
            return f"expected {expected}, found {kind}"
    return None


def closing_fault(container: Any, alternative: Alternative) -> str | None:
    """What is wrong with a container as a whole, now that it is closed; its children are not looked at."""
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
    """What is wrong with a closed scalar, if anything."""
    fault = kind_fault(kind, alternative)
    if fault is not None:
        return fault
    for leaf in alternative.leaves:
        if leaf.values is not None and not any(equal(value, allowed) for allowed in leaf.values):
            return "is none of the allowed values"
        if leaf.limits and not _within(value, kind, leaf):
            return "is outside its limits"
    return None


def _scalar_fits(value: Any, kind: str, alternative: Alternative) -> bool:
    return scalar_fault(value, kind, alternative) is None


def _within(value: Any, kind: str, leaf: Leaf) -> bool:
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
