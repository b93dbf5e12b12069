"""A linter of the published rules of three dialects, written from their documentation, apart from the lowering code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

NOTES = {"title", "description"}
TAKEN = {
    "openai": NOTES | {
        "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref", "$defs",
        "definitions", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
        "minItems", "maxItems", "minLength", "maxLength",
    },
    "anthropic": NOTES | {
        "type", "properties", "required", "additionalProperties", "items", "minItems", "enum", "const", "anyOf",
        "allOf", "$ref", "$defs", "format", "pattern",
    },
    "gemini": NOTES | {
        "$id", "$defs", "$ref", "$anchor", "type", "format", "enum", "items", "prefixItems", "minItems", "maxItems",
        "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required", "propertyOrdering",
    },
}  # fmt: skip
"""The keywords that each vendor's documentation lists as supported."""
REFUSED: dict[str, set[str]] = {
    "openai": {
        "allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies",
        "patternProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames", "minProperties",
        "maxProperties", "contains", "minContains", "maxContains", "uniqueItems", "default", "prefixItems",
    },
    "anthropic": {
        "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "minimum",
        "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "maxItems",
        "uniqueItems", "contains", "minContains", "maxContains", "prefixItems", "patternProperties", "propertyNames",
        "minProperties", "maxProperties", "unevaluatedProperties",
    },
    "gemini": set(),
}  # fmt: skip
"""The keywords that the vendor answers with an error; it takes no notice of others."""
OPENAI_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
ANTHROPIC_FORMATS = OPENAI_FORMATS | {"uri"}
TYPES = {"string", "number", "integer", "boolean", "null", "array", "object"}
LOOKAROUND = ("(?=", "(?!", "(?<=", "(?<!")


def lint(schema: Any, dialect: str) -> list[str]:
    """The breaches of a dialect's rules in a schema; none means that the vendor takes it."""
    return {"openai": lint_openai, "anthropic": lint_anthropic, "gemini": lint_gemini}[dialect](schema)


def strays(schema: Any, dialect: str) -> list[str]:
    """Keywords in a schema that the vendor does not list as supported, refused or not."""
    found = ((path, node) for path, node in nodes(schema) if isinstance(node, dict))
    return [f"{path}: {word}" for path, node in found for word in node if word not in TAKEN[dialect]]


def nodes(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every subschema, the definitions' too."""
    yield path, schema
    if not isinstance(schema, dict):
        return
    for word in ("properties", "$defs", "definitions", "patternProperties"):
        if isinstance(schema.get(word), dict):
            for name, sub in schema[word].items():
                yield from nodes(sub, f"{path}/{word}/{name}")
    for word in ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"):
        if isinstance(schema.get(word), dict):
            yield from nodes(schema[word], f"{path}/{word}")
    for word in ("anyOf", "oneOf", "allOf", "prefixItems", "items"):
        if isinstance(schema.get(word), list):
            for index, sub in enumerate(schema[word]):
                yield from nodes(sub, f"{path}/{word}/{index}")


def types_of(node: dict[str, Any]) -> list[Any]:
    said = node.get("type")
    return said if isinstance(said, list) else [said]


def common(schema: Any, dialect: str, formats: set[str] | None) -> Iterator[str]:
    """What the three have in common: known keywords, known types, references that lead somewhere."""
    targets = {"#"} if isinstance(schema, dict) else set()
    for word in ("$defs", "definitions"):
        targets |= {f"#/{word}/{name}" for name in schema.get(word, {})}
    for path, node in nodes(schema):
        if not isinstance(node, dict):
            yield f"{path}: a boolean schema"
            continue
        for word in REFUSED[dialect].intersection(node):
            yield f"{path}: {word} is not taken"
        if "type" in node and not set(types_of(node)) <= TYPES:
            yield f"{path}: type {node['type']!r}"
        if "$ref" in node and node["$ref"] not in targets:
            yield f"{path}: $ref {node['$ref']!r} leads nowhere"
        if formats is not None and "format" in node and node["format"] not in formats:
            yield f"{path}: format {node['format']!r}"
        if any(mark in str(node.get("pattern", "")) for mark in LOOKAROUND):
            yield f"{path}: lookaround in a pattern"
        if "anyOf" in node and not node["anyOf"]:
            yield f"{path}: empty anyOf"
        if "enum" in node and not node["enum"]:
            yield f"{path}: empty enum"


def objects_are_closed(schema: Any, *, all_required: bool) -> Iterator[str]:
    for path, node in nodes(schema):
        if not isinstance(node, dict) or ("object" not in types_of(node) and "properties" not in node):
            continue
        if node.get("additionalProperties") is not False:
            yield f"{path}: additionalProperties is not false"
        properties, required = set(node.get("properties", {})), set(node.get("required", []))
        if required - properties:
            yield f"{path}: requires what it does not list"
        if all_required and properties - required:
            yield f"{path}: not all required"


def every_node_has_a_type(schema: Any) -> Iterator[str]:
    for path, node in nodes(schema):
        if isinstance(node, dict) and not ({"type", "anyOf", "allOf", "$ref", "enum", "const"} & node.keys()):
            yield f"{path}: no type"
        if isinstance(node, dict) and "array" in types_of(node) and not isinstance(node.get("items"), dict):
            yield f"{path}: an array without items"


def definitions(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {"#": schema} | {
        f"#/{word}/{name}": sub for word in ("$defs", "definitions") for name, sub in schema.get(word, {}).items()
    }


def own_nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The nodes of a definition, without the definitions under it."""
    bare = {word: value for word, value in schema.items() if word not in ("$defs", "definitions")}
    yield from (node for _, node in nodes(bare) if isinstance(node, dict))


def depth(schema: Any) -> int:
    """Objects with properties along the deepest path, references not followed."""
    if not isinstance(schema, dict):
        return 0
    below = [*schema.get("properties", {}).values(), *schema.get("anyOf", []), *schema.get("allOf", [])]
    below += [schema["items"]] if isinstance(schema.get("items"), dict) else []
    return ("properties" in schema) + max(map(depth, below), default=0)


def lint_openai(schema: dict[str, Any]) -> list[str]:
    found = list(common(schema, "openai", OPENAI_FORMATS))
    if schema.get("type") != "object" or "anyOf" in schema or "$ref" in schema:
        found.append("the root is not an object")
    found += objects_are_closed(schema, all_required=True)
    found += every_node_has_a_type(schema)
    found += [f"{path}: $ref with siblings" for path, node in nodes(schema) if "$ref" in node and len(node) > 1]
    properties = enum_values = chars = 0
    for name, top in definitions(schema).items():
        chars += len(name)
        if depth({word: value for word, value in top.items() if word not in ("$defs", "definitions")}) > 10:
            found.append(f"{name}: nested more than 10 deep")
        for node in own_nodes(top):
            listed = node.get("enum", [])
            size = sum(len(str(value)) for value in listed)
            properties += len(node.get("properties", {}))
            enum_values += len(listed)
            chars += size + sum(map(len, node.get("properties", {}))) + len(str(node.get("const", "")))
            if len(listed) > 250 and size > 15_000:
                found.append(f"{name}: an enum of {size} characters")
    for count, most, what in (
        (properties, 5_000, "properties"),
        (enum_values, 1_000, "enum values"),
        (chars, 120_000, "chars"),
    ):
        if count > most:
            found.append(f"{count} {what}, at most {most}")
    return found


def lint_anthropic(schema: dict[str, Any]) -> list[str]:
    found = list(common(schema, "anthropic", ANTHROPIC_FORMATS))
    if schema.get("type") != "object":
        found.append("the root is not an object")
    found += objects_are_closed(schema, all_required=False)
    found += every_node_has_a_type(schema)
    optional = unions = 0
    for _, node in nodes(schema):
        if isinstance(node, dict):
            optional += len(set(node.get("properties", {})) - set(node.get("required", [])))
            unions += "anyOf" in node or isinstance(node.get("type"), list)
            if node.get("minItems", 0) not in (0, 1):
                found.append(f"minItems {node['minItems']}")
            if any(isinstance(value, dict | list) for value in node.get("enum", [])):
                found.append("an enum of objects or arrays")
    if optional > 24:
        found.append(f"{optional} optional parameters, at most 24")
    if unions > 16:
        found.append(f"{unions} union-typed parameters, at most 16")
    if loop := find_loop(schema, through_optional=True):
        found.append(f"recursion through {loop}")
    return found


def lint_gemini(schema: dict[str, Any]) -> list[str]:
    found = list(common(schema, "gemini", None))
    for path, node in nodes(schema):
        if not isinstance(node, dict):
            continue
        if any(isinstance(value, bool) or not isinstance(value, str | int | float) for value in node.get("enum", [])):
            found.append(f"{path}: an enum of something else than strings and numbers")
        if "$ref" in node and any(not word.startswith("$") for word in node):
            found.append(f"{path}: $ref with siblings")
        if "$ref" in node and node["$ref"] == "#":
            found.append(f"{path}: $ref to the root")
    if loop := find_loop(schema, through_optional=False):
        found.append(f"recursion through {loop} outside optional properties")
    return found


def references(node: Any, *, through_optional: bool) -> Iterator[str]:
    if not isinstance(node, dict):
        return
    if isinstance(node.get("$ref"), str):
        yield node["$ref"]
    required = node.get("required", [])
    for name, sub in node.get("properties", {}).items():
        if through_optional or name in required:
            yield from references(sub, through_optional=through_optional)
    below = [node.get("items"), node.get("additionalProperties"), *node.get("anyOf", []), *node.get("allOf", [])]
    for sub in [*below, *node.get("prefixItems", [])]:
        yield from references(sub, through_optional=through_optional)


def find_loop(schema: dict[str, Any], *, through_optional: bool) -> str | None:
    """A definition that leads back to itself."""
    tops = definitions(schema)
    edges = {name: set(references(top, through_optional=through_optional)) for name, top in tops.items()}
    for start in edges:
        reached: set[str] = set()
        queue = list(edges[start])
        while queue:
            name = queue.pop()
            if name not in reached:
                reached.add(name)
                queue += edges.get(name, ())
        if start in reached:
            return start
    return None
