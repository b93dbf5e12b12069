"""A linter of what vendors document as refused, or answer with an error: a rule each, apart from the lowering code.

Every rule names where it was read. `lint` gives the breaches of a dialect's rules; none means that the vendor takes the
schema, as far as is known. Nothing here is derived from what slipform sends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Schema = dict[str, Any]


class Rule(NamedTuple):
    """One documented restriction."""

    name: str
    source: str
    check: Callable[[Any], Iterator[str]]


RULES: dict[str, list[Rule]] = {"openai": [], "azure": [], "anthropic": [], "gemini": []}
OPENAI = "developers.openai.com structured-outputs, supported schemas"
AZURE = "learn.microsoft.com azure openai structured-outputs; openai-python#2193"
ANTHROPIC = "platform.claude.com structured-outputs, JSON Schema limitations"
GEMINI = "ai.google.dev structured-output, JSON Schema support; google-genai types.py"


def rule(*dialects: str, source: str) -> Callable[[Callable[[Any], Iterator[str]]], Callable[[Any], Iterator[str]]]:
    """Register a check with the dialects whose documentation has it."""

    def register(check: Callable[[Any], Iterator[str]]) -> Callable[[Any], Iterator[str]]:
        for dialect in dialects:
            RULES[dialect].append(Rule(check.__name__, source, check))
        return check

    return register


def lint(schema: Any, dialect: str) -> list[str]:
    """The breaches of a dialect's rules in a schema."""
    return [f"{each.name}: {found}" for each in RULES[dialect] for found in each.check(schema)]


NOTES = {"title", "description"}
TAKEN = {
    "openai": NOTES | {
        "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref", "$defs",
        "definitions", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
        "minItems", "maxItems", "minLength", "maxLength",
    },
    "azure": NOTES | {
        "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref", "$defs",
        "definitions",
    },
    "anthropic": NOTES | {
        "type", "properties", "required", "additionalProperties", "items", "minItems", "enum", "const", "anyOf",
        "allOf", "$ref", "$defs", "definitions", "format", "pattern", "default",
    },
    "gemini": NOTES | {
        "$id", "$defs", "$ref", "$anchor", "type", "format", "enum", "items", "prefixItems", "minItems", "maxItems",
        "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required", "propertyOrdering",
    },
}  # fmt: skip
"""The keywords that each vendor's documentation lists as supported; all others are refused or without effect."""
FORMATS = {
    "openai": {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"},
    "azure": set[str](),
    "anthropic": {
        "date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid",
    },
    "gemini": {"date-time", "date", "time"},
}  # fmt: skip
TYPES = {"string", "number", "integer", "boolean", "null", "array", "object"}


def nodes(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every subschema, the definitions' too."""
    yield path, schema
    if not isinstance(schema, dict):
        return
    for word in ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas"):
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


def objects(schema: Any) -> Iterator[tuple[str, Schema]]:
    """Every subschema that is no boolean."""
    return ((path, node) for path, node in nodes(schema) if isinstance(node, dict))


def types_of(node: Schema) -> list[Any]:
    said = node.get("type")
    return said if isinstance(said, list) else [said]


def tops(schema: Schema) -> dict[str, Schema]:
    """The root and each definition, without the definitions in it."""
    bare = {word: value for word, value in schema.items() if word not in ("$defs", "definitions")}
    return {"#": bare} | {
        f"#/{word}/{name}": sub for word in ("$defs", "definitions") for name, sub in schema.get(word, {}).items()
    }


for _name, _taken in TAKEN.items():

    @rule(_name, source="the vendor's list of supported keywords")
    def keywords(schema: Any, taken: set[str] = _taken) -> Iterator[str]:
        """Only keywords that are listed as supported."""
        yield from (f"{path}: {word}" for path, node in objects(schema) for word in node if word not in taken)

    @rule(_name, source="the vendor's list of formats")
    def formats(schema: Any, known: set[str] = FORMATS[_name]) -> Iterator[str]:
        """Only formats that are listed as supported."""
        for path, node in objects(schema):
            if "format" in node and node["format"] not in known:
                yield f"{path}: {node['format']!r}"


@rule("openai", "azure", "anthropic", source="the root must be an object, and no union or reference")
def root_is_an_object(schema: Any) -> Iterator[str]:
    if schema.get("type") != "object" or {"anyOf", "oneOf", "allOf", "$ref", "enum"} & schema.keys():
        yield "the root is not an object"


@rule("openai", "azure", "anthropic", "gemini", source="JSON Schema itself: types are seven words")
def known_types(schema: Any) -> Iterator[str]:
    for path, node in nodes(schema):
        if not isinstance(node, dict):
            yield f"{path}: a boolean schema"
        elif "type" in node and (not types_of(node) or not set(types_of(node)) <= TYPES):
            yield f"{path}: type {node['type']!r}"


@rule("openai", "azure", "anthropic", "gemini", source="every vendor's SDK raises, or its API asks, for a type")
def every_node_has_a_type(schema: Any) -> Iterator[str]:
    for path, node in objects(schema):
        if not ({"type", "anyOf", "oneOf", "allOf", "$ref", "enum", "const"} & node.keys()):
            yield f"{path}: no type"


@rule("openai", "azure", "anthropic", source="arrays need typed items")
def arrays_have_items(schema: Any) -> Iterator[str]:
    for path, node in objects(schema):
        if "array" in types_of(node) and not isinstance(node.get("items"), dict):
            yield f"{path}: an array without items"


@rule("gemini", source="cline#7339: `items: missing field`")
def arrays_have_items_or_places(schema: Any) -> Iterator[str]:
    for path, node in objects(schema):
        if "array" in types_of(node) and not (node.get("items") or node.get("prefixItems")):
            yield f"{path}: an array without items"


@rule("openai", "azure", "anthropic", "gemini", source="JSON Schema: `anyOf` and `enum` are not empty")
def nothing_is_empty(schema: Any) -> Iterator[str]:
    for path, node in objects(schema):
        yield from (f"{path}: empty {word}" for word in ("anyOf", "enum", "prefixItems") if node.get(word) == [])


@rule("openai", "azure", "anthropic", source="additionalProperties must be false on every object")
def objects_are_closed(schema: Any) -> Iterator[str]:
    for path, node in objects(schema):
        if ("object" in types_of(node) or "properties" in node) and node.get("additionalProperties") is not False:
            yield f"{path}: additionalProperties is not false"


@rule("openai", "azure", source="all fields must be required")
def all_are_required(schema: Any) -> Iterator[str]:
    for path, node in objects(schema):
        if missing := set(node.get("properties", {})) - set(node.get("required", [])):
            yield f"{path}: not required: {sorted(missing)}"


@rule("openai", "azure", "anthropic", "gemini", source="wire.md 2.4, and 400s of all: `required` names properties")
def required_are_listed(schema: Any) -> Iterator[str]:
    for path, node in objects(schema):
        if "required" in node and (unknown := set(node["required"]) - set(node.get("properties", {}))):
            yield f"{path}: requires {sorted(unknown)} and does not list it"


@rule("openai", "azure", "anthropic", "gemini", source="references inside the document only")
def references_lead_somewhere(schema: Any) -> Iterator[str]:
    targets = tops(schema).keys()
    for path, node in objects(schema):
        if "$ref" in node and node["$ref"] not in targets:
            yield f"{path}: {node['$ref']!r}"


@rule("openai", "azure", "anthropic", source="schema.md 3.1; the SDKs drop or inline what stands beside a $ref")
def references_stand_alone(schema: Any) -> Iterator[str]:
    yield from (f"{path}: $ref with siblings" for path, node in objects(schema) if "$ref" in node and len(node) > 1)


@rule("gemini", source="google-genai docstring: no non-$ siblings of a $ref; wire.md 2.4")
def references_have_only_dollar_siblings(schema: Any) -> Iterator[str]:
    for path, node in objects(schema):
        if "$ref" in node and any(not word.startswith("$") for word in node):
            yield f"{path}: $ref with siblings"
        if node.get("$ref") == "#":
            yield f"{path}: a reference to the root"


@rule("openai", "azure", "anthropic", source="no lookaround or backreferences; Anthropic: no word boundaries either")
def patterns_are_regular(schema: Any) -> Iterator[str]:
    for path, node in objects(schema):
        if re.search(r"\(\?[=!<>]|\\[1-9]|\\k<|\\[bB]", str(node.get("pattern", ""))):
            yield f"{path}: pattern {node['pattern']!r}"


def depth(schema: Any, *, arrays: bool) -> int:
    """Objects, and arrays if asked, along the deepest path; references are not followed."""
    if not isinstance(schema, dict):
        return 0
    below = [*schema.get("properties", {}).values(), *schema.get("anyOf", []), *schema.get("allOf", [])]
    below += [schema[word] for word in ("items", "additionalProperties") if isinstance(schema.get(word), dict)]
    below += schema.get("prefixItems", [])
    own = "properties" in schema or (arrays and "array" in types_of(schema))
    return own + max((depth(sub, arrays=arrays) for sub in below), default=0)


@rule("openai", source="at most 10 levels of nesting, counted without following $ref")
def ten_levels(schema: Any) -> Iterator[str]:
    yield from (f"{name}: too deep" for name, top in tops(schema).items() if depth(top, arrays=False) > 10)


@rule("azure", source="at most 5 levels of nesting")
def five_levels(schema: Any) -> Iterator[str]:
    yield from (f"{name}: too deep" for name, top in tops(schema).items() if depth(top, arrays=False) > 5)


@rule("gemini", source="Portkey#1546, #1616: four levels of objects and arrays; ToolsForMCPServer#9: $ref starts anew")
def four_levels(schema: Any) -> Iterator[str]:
    yield from (f"{name}: too deep" for name, top in tops(schema).items() if depth(top, arrays=True) > 4)


@rule("openai", source="limits: 5,000 properties, 1,000 enum values, 120,000 characters of names and values")
def size(schema: Any) -> Iterator[str]:
    counts = {"properties": 0, "enum values": 0, "chars": 0}
    for word in ("$defs", "definitions"):
        counts["chars"] += sum(map(len, schema.get(word, {})))
    for _, node in objects(schema):
        listed = node.get("enum", [])
        counts["properties"] += len(node.get("properties", {}))
        counts["enum values"] += len(listed)
        counts["chars"] += sum(map(len, node.get("properties", {}))) + len(str(node.get("const", "")))
        counts["chars"] += sum(len(str(value)) for value in listed)
    for (what, count), most in zip(counts.items(), (5_000, 1_000, 120_000), strict=True):
        if count > most:
            yield f"{count} {what}, at most {most}"


@rule("openai", source="an enum of more than 250 strings may have 15,000 characters")
def long_enums(schema: Any) -> Iterator[str]:
    for path, node in objects(schema):
        if len(node.get("enum", [])) > 250 and sum(len(str(value)) for value in node["enum"]) > 15_000:
            yield f"{path}: an enum that is too long"


@rule("openai", "azure", "anthropic", "gemini", source="litellm#37881: enum values are held against the declared type")
def enums_fit_their_type(schema: Any) -> Iterator[str]:
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
    for path, node in objects(schema):
        for value in node.get("enum", []) if "type" in node else ():
            kind = kinds.get(type(value), "object" if isinstance(value, dict) else "array")
            if kind not in types_of(node) and not (kind == "integer" and "number" in types_of(node)):
                yield f"{path}: {value!r} is no {node['type']}"


@rule("azure", source="openai-python#2193: Objects provided via 'anyOf' must not share identical first keys")
def first_keys_differ(schema: Any) -> Iterator[str]:
    found = tops(schema)
    for path, node in objects(schema):
        firsts: list[str] = []
        for branch in node.get("anyOf", []):
            while "$ref" in branch:
                branch = found[branch["$ref"]]
            firsts += list(branch.get("properties", {}))[:1]
        if len(set(firsts)) < len(firsts):
            yield f"{path}: branches begin with the same key"


@rule("anthropic", source=ANTHROPIC + ": allOf with $ref not supported")
def no_all_of_around_a_reference(schema: Any) -> Iterator[str]:
    for path, node in objects(schema):
        if any("$ref" in str(branch) for branch in node.get("allOf", [])):
            yield f"{path}: allOf around a $ref"


@rule("anthropic", source="litellm#37881, openstory#1410: an enum beside a list of types is a 400")
def enums_have_one_type(schema: Any) -> Iterator[str]:
    for path, node in objects(schema):
        if "enum" in node and isinstance(node.get("type"), list):
            yield f"{path}: an enum beside {node['type']}"


@rule("anthropic", source=ANTHROPIC + ": enum of strings, numbers, bools or nulls only")
def enums_are_scalars(schema: Any) -> Iterator[str]:
    for path, node in objects(schema):
        if any(isinstance(value, dict | list) for value in [*node.get("enum", []), node.get("const")]):
            yield f"{path}: an enum of objects or arrays"


@rule("anthropic", source=ANTHROPIC + ": minItems 0 or 1")
def few_min_items(schema: Any) -> Iterator[str]:
    for path, node in objects(schema):
        if node.get("minItems", 0) not in (0, 1):
            yield f"{path}: {node['minItems']}"


@rule("anthropic", source="400s of the API: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'")
def names_are_plain(schema: Any) -> Iterator[str]:
    for path, node in objects(schema):
        for name in node.get("properties", {}):
            if not re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name):
                yield f"{path}: {name!r}"


@rule("anthropic", source=ANTHROPIC + ": at most 24 optional and 16 union-typed parameters")
def few_optionals_and_unions(schema: Any) -> Iterator[str]:
    optional = unions = 0
    for _, node in objects(schema):
        optional += len(set(node.get("properties", {})) - set(node.get("required", [])))
        unions += "anyOf" in node or isinstance(node.get("type"), list)
    if optional > 24:
        yield f"{optional} optional parameters"
    if unions > 16:
        yield f"{unions} union-typed parameters"


@rule("gemini", source=GEMINI + ": enum of strings and numbers")
def enums_are_strings_or_numbers(schema: Any) -> Iterator[str]:
    for path, node in objects(schema):
        if any(isinstance(value, bool) or not isinstance(value, str | int | float) for value in node.get("enum", [])):
            yield f"{path}: an enum of something else"


@rule("gemini", source="opencode#46676: `enum[0]: cannot be empty`")
def enums_have_no_empty_string(schema: Any) -> Iterator[str]:
    yield from (f"{path}: an empty string" for path, node in objects(schema) if "" in node.get("enum", []))


@rule("gemini", source="browser-use#3786: `properties: should be non-empty for OBJECT type`")
def objects_have_properties(schema: Any) -> Iterator[str]:
    for path, node in objects(schema):
        if "object" in types_of(node) and not node.get("properties"):
            yield f"{path}: an object without properties"


@rule("gemini", source="opencode#11889: properties and required are only allowed for OBJECT type")
def only_objects_have_properties(schema: Any) -> Iterator[str]:
    for path, node in objects(schema):
        if {"properties", "required"} & node.keys() and "object" not in types_of(node):
            yield f"{path}: properties of no object"


@rule("gemini", source="python-genai#2170: the sum of maxItems is limited to about 960; vercel/ai#21192")
def few_items_at_most(schema: Any) -> Iterator[str]:
    total = sum(node.get("maxItems", 0) for _, node in objects(schema))
    if total > 950:
        yield f"maxItems add up to {total}"


@rule("gemini", source="open-historia#790, vercel/ai#21192: arrays of objects are unrolled as often as bounds say")
def arrays_of_objects_are_unbounded(schema: Any) -> Iterator[str]:
    found = tops(schema)
    for path, node in objects(schema):
        items = node.get("items", {})
        while "$ref" in items:
            if items["$ref"] not in found:
                yield f"{path}: a reference that leads nowhere"
                items = {}
            else:
                items = found[items["$ref"]]
        if "properties" in items and (node.get("maxItems", 0) > 1 or node.get("minItems", 0) > 1):
            yield f"{path}: bounds of an array of objects"


@rule("anthropic", source=ANTHROPIC + ": no recursive schemas")
def no_recursion(schema: Any) -> Iterator[str]:
    if loop := find_loop(schema, through_optional=True):
        yield f"recursion through {loop}"


@rule("gemini", source=GEMINI + ": cyclic references only within non-required properties")
def recursion_is_optional(schema: Any) -> Iterator[str]:
    if loop := find_loop(schema, through_optional=False):
        yield f"recursion through {loop} outside optional properties"


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


def find_loop(schema: Schema, *, through_optional: bool) -> str | None:
    """A definition that leads back to itself."""
    edges = {name: set(references(top, through_optional=through_optional)) for name, top in tops(schema).items()}
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
