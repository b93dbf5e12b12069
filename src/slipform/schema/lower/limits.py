"""Limits of the vendors, and what to do about them before a call is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slipform.errors import UnsupportedSchemaError
from slipform.schema.lower.dialects import Dialect
from slipform.schema.lower.emit import DEFS, Emitter, Policy

_LISTS = ("anyOf", "allOf", "prefixItems")
_SINGLES = ("items", "additionalProperties")


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Each subschema of a lowered schema, with the container and the key that hold it."""
    for word in ("properties", "patternProperties"):
        if word in schema:
            for name, sub in schema[word].items():
                yield schema[word], name, sub
    for word in _SINGLES:
        if isinstance(schema.get(word), dict):
            yield schema, word, schema[word]
    for word in _LISTS:
        if word in schema:
            for index, sub in enumerate(schema[word]):
                yield schema[word], index, sub


def walk(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A lowered schema and all under it, definitions apart."""
    stack = [schema]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(sub for _, _, sub in subschemas(node))


def next_policy(emitter: Emitter, root: Mapping[str, Any]) -> Policy | None:
    """The choices for another walk, when this one went over a limit or left a loop that the dialect refuses."""
    limits = emitter.dialect.limits
    boxed = _over(emitter.optionals, limits.get("optionals"))
    chosen = _over(emitter.unions, limits.get("unions"))
    cut = set()
    if emitter.dialect.recursion == "optional":
        name = _bad_loop({**emitter.defs, "": dict(root)})
        if name is not None:
            cut.add(emitter.keys[name])
    if not (boxed or chosen or cut):
        return None
    old = emitter.policy
    return Policy(old.boxed | boxed, old.chosen | chosen, old.cut | cut)


def _over(sites: list[tuple[int, str]], most: int | None) -> frozenset[str]:
    """The sites to spell otherwise so that at most so many are left: the outermost stay."""
    if most is None or len(sites) <= most:
        return frozenset()
    counts: dict[str, list[int]] = {}
    for depth, site in sites:
        entry = counts.setdefault(site, [depth, 0])
        entry[0] = min(entry[0], depth)
        entry[1] += 1
    left = most
    over = []
    for site, (_, count) in sorted(counts.items(), key=lambda item: item[1][0]):
        if count <= left:
            left -= count
        else:
            over.append(site)
    return frozenset(over)


def _bad_loop(defs: Mapping[str, dict[str, Any]]) -> str | None:
    """A definition that leads back to itself through required values only."""
    edges = {name: _required_refs(schema) for name, schema in defs.items()}
    state: dict[str, int] = {}
    for start, first in edges.items():
        if start in state:
            continue
        stack = [(start, iter(first))]
        state[start] = 1
        while stack:
            name, targets = stack[-1]
            target = next(targets, None)
            if target is None:
                state[name] = 2
                stack.pop()
            elif state.get(target) == 1:
                return target
            elif target not in state:
                state[target] = 1
                stack.append((target, iter(edges[target])))
    return None


def _required_refs(schema: dict[str, Any]) -> list[str]:
    found = []
    stack = [schema]
    while stack:
        node = stack.pop()
        if "$ref" in node:
            found.append(node["$ref"].removeprefix(DEFS))
        required = node.get("required", ())
        for holder, key, sub in subschemas(node):
            if holder is not node.get("properties") or key in required:
                stack.append(sub)
    return found


def hoist(root: dict[str, Any], defs: dict[str, dict[str, Any]], dialect: Dialect) -> None:
    """Move what is nested too deeply into definitions of its own, where depth is counted anew."""
    most = dialect.limits.get("depth")
    if most is None:
        return
    queue = [root, *defs.values()]
    count = 0
    for schema in queue:
        stack = [(schema, 1)]
        while stack:
            node, depth = stack.pop()
            below = depth + ("properties" in node)
            for holder, key, sub in list(subschemas(node)):
                if below > most and "properties" in sub:
                    if dialect.refs == "none":
                        raise _refused(dialect, f"objects are nested more than {most} deep")
                    count += 1
                    name = f"deep_{count}"
                    while name in defs:
                        name += "_"
                    defs[name] = sub
                    holder[key] = {"$ref": DEFS + name}
                    queue.append(sub)
                else:
                    stack.append((sub, below))


def check(schema: dict[str, Any], defs: Mapping[str, dict[str, Any]], dialect: Dialect) -> None:
    """Raise when the lowered schema is over a limit after all."""
    limits = dialect.limits
    if not limits:
        return
    counts = dict.fromkeys(("properties", "name_chars", "enum_values", "optionals", "unions"), 0)
    counts["name_chars"] = sum(map(len, defs))
    for top in (schema, *defs.values()):
        for node in walk(top):
            _count(node, counts)
    for name, found in counts.items():
        if found > limits.get(name, found):
            words = name.replace("_", " ").replace("name chars", "characters of names and enum values")
            raise _refused(dialect, f"{found} {words}, at most {limits[name]}")


def _count(node: Mapping[str, Any], counts: dict[str, int]) -> None:
    properties = node.get("properties", {})
    counts["properties"] += len(properties)
    counts["name_chars"] += sum(map(len, properties))
    counts["optionals"] += len(properties.keys() - set(node.get("required", ())))
    counts["unions"] += len(node.get("anyOf", ())) > 1 or isinstance(node.get("type"), list)
    values = node.get("enum", ())
    counts["enum_values"] += len(values)
    counts["name_chars"] += sum(len(str(value)) for value in values)


def _refused(dialect: Dialect, why: str) -> UnsupportedSchemaError:
    return UnsupportedSchemaError(
        f"Not expressible in {dialect.name}: {why}",
        hint="Use the next channel: a tool call or a prompt.",
        details={"dialect": dialect.name},
    )
