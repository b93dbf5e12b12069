"""Random JSON Schemas, and values that mostly fit them.

Drawn from a `random.Random`, so a case is known by its seed. `multipleOf` is an integer, since validators differ on
floats, and there is no `format`, which slipform holds answers to and `jsonschema` does not.
"""

from __future__ import annotations

from random import Random
from typing import Any
from urllib.parse import quote

import jsonschema
from jsonschema.protocols import Validator
from referencing.exceptions import Unresolvable

NAMES = ("a", "b", "kind", "name", "items", "value", "first name", "größe", "type", "$ref_", "x-1")
WORDS = ("", "a", "Ada", "open", "sent back", "null", "1", "true", '"q"', "{}", "[1]", "naïve", "a\nb", "\\", "日本")
PATTERNS = {
    "^[a-z]+$": ("abc", "z"),
    "^[A-Z]{2}-[0-9]+$": ("AB-1", "ZZ-42"),
    "b": ("abc", "b"),
    "^(?!q)": ("a", "zz"),
    "^.{2,4}$": ("ab", "abcd"),
    "^(x|y)+$": ("xy", "yyy"),
}
"""Patterns that all engines read alike, and texts that match them."""
_DEFINITIONS = ("one", "Box<int>", "a/b~c", "größe")
_DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def random_schema(dice: Random, *, tidy: bool | None = None, of_tool: bool = False) -> dict[str, Any]:
    """A document with definitions that it, and they themselves, may refer to.

    In a tidy one objects are closed and all their properties required, as vendors' strict modes want it. A tool's
    parameters are an object in every API.
    """
    return _Drawing(dice, dice.random() < 0.3 if tidy is None else tidy).document(of_tool=of_tool)


def validator_of(schema: dict[str, Any]) -> Validator:
    """The judge: `jsonschema`, in the draft that the schema names."""
    return jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema)


class _Drawing:
    """One schema while it is drawn."""

    def __init__(self, dice: Random, tidy: bool) -> None:
        self.dice = dice
        self.tidy = tidy
        self.old = not tidy and dice.random() < 0.1
        """Whether it is of draft 7, with tuples spelled as `items` and definitions under `definitions`."""
        self.home = "definitions" if self.old else "$defs"
        self.names = dice.sample(_DEFINITIONS, dice.randrange(4))
        self.anchored = {name for name in self.names if not self.old and dice.random() < 0.3}

    def document(self, *, of_tool: bool) -> dict[str, Any]:
        root = self.object(3) if self.dice.random() < 0.75 or of_tool else self.node(3)
        if "$ref" in root and self.old:  # what stands beside it would not count
            root = {"allOf": [root]}
        if self.old:
            root["$schema"] = _DRAFT_7
        if self.names:
            root[self.home] = {name: self.definition(name) for name in self.names}
        return root

    def definition(self, name: str) -> dict[str, Any]:
        drawn = self.object(2) if self.dice.random() < 0.7 else self.leaf(may_refer=False)
        if name in self.anchored:
            drawn["$anchor"] = f"at-{self.names.index(name)}"
        return drawn

    def reference(self) -> dict[str, Any]:
        name = self.dice.choice(self.names)
        if name in self.anchored and self.dice.random() < 0.7:
            return {"$ref": f"#at-{self.names.index(name)}"}
        step = name.replace("~", "~0").replace("/", "~1")
        return {"$ref": f"#/{self.home}/{quote(step, safe='~')}"}

    def node(self, depth: int) -> dict[str, Any]:
        dice = self.dice
        if depth <= 0 or dice.random() < 0.35:
            return self.leaf()
        kinds = ("object", "object", "array", "array", "anyOf", "oneOf", "allOf", "tuple", "if")
        kind = dice.choice(kinds[:5] if self.tidy else kinds)
        if kind == "object":
            return self.object(depth)
        if kind == "array":
            return self.array(depth)
        if kind == "tuple":
            return self.tuple(depth)
        if kind == "allOf":
            return {"allOf": [self.object(depth - 1, closed=False) for _ in range(dice.randint(1, 2))]}
        if kind == "if":
            name = dice.choice(NAMES)
            condition = {"properties": {name: self.leaf(may_refer=False)}, "required": [name]}
            return {**self.object(depth - 1), "if": condition, "then": {"required": [dice.choice(NAMES)]}}
        branches = [self.node(depth - 1) for _ in range(dice.randint(1, 3))]
        return {kind: [*branches, {"type": "null"}] if dice.random() < 0.3 else branches}

    def leaf(self, *, may_refer: bool = True) -> dict[str, Any]:
        dice = self.dice
        if may_refer and self.names and dice.random() < 0.3:
            return self.reference()
        kind = dice.randrange(11 if self.tidy else 12)
        if kind <= 2:
            return self.string()
        if kind <= 4:
            return self.number()
        if kind == 5:
            return {"type": "boolean"}
        if kind == 6:
            return {"enum": dice.sample(["open", "paid", "Sent back", "OPEN", 1, 2.5, None, True, "1"], 3)}
        if kind == 7:
            return {"const": dice.choice(["book", 7, None, False, [1], {"a": 1}])}
        if kind == 8:
            return {"type": [dice.choice(["string", "integer", "boolean", "object"]), "null"]}
        if kind == 9:
            return {"anyOf": [self.string(), {"type": "null"}]}
        if kind == 10:
            return {"type": "string", "enum": dice.sample(["red", "dark green", "Blue", "x"], dice.randint(1, 3))}
        return dice.choice(({}, {"type": "object"}, {"type": "array"}, {"not": {"type": "string"}}, {"type": "null"}))

    def string(self) -> dict[str, Any]:
        dice = self.dice
        drawn: dict[str, Any] = {"type": "string"}
        what = dice.randrange(6)
        if what == 0:
            drawn |= {"minLength": dice.randint(0, 2), "maxLength": dice.randint(2, 6)}
        elif what == 1:
            drawn["pattern"] = dice.choice(tuple(PATTERNS))
        elif what == 2:
            drawn["description"] = dice.choice(WORDS)
        return drawn

    def number(self) -> dict[str, Any]:
        dice = self.dice
        drawn: dict[str, Any] = {"type": dice.choice(["integer", "integer", "number"])}
        if dice.random() < 0.3:
            drawn |= {"minimum": dice.randint(-9, 0), dice.choice(["maximum", "exclusiveMaximum"]): dice.randint(3, 99)}
        if dice.random() < 0.15:
            drawn["multipleOf"] = dice.randint(1, 4)
        return drawn

    def object(self, depth: int, *, closed: bool | None = None) -> dict[str, Any]:
        dice = self.dice
        names = dice.sample(NAMES, dice.randint(0, 4))
        drawn: dict[str, Any] = {"type": "object", "properties": {name: self.node(depth - 1) for name in names}}
        if self.tidy:
            return {**drawn, "required": names, "additionalProperties": False}
        if names and dice.random() < 0.8:
            drawn["required"] = names if dice.random() < 0.6 else dice.sample(names, dice.randint(1, len(names)))
        if closed is None and (rest := dice.random()) < 0.8:
            drawn["additionalProperties"] = False if rest < 0.6 else self.leaf()
        if dice.random() < 0.1:
            drawn["patternProperties"] = {dice.choice(("^x-", "e$")): self.leaf()}
        if dice.random() < 0.05:
            drawn |= {"minProperties": dice.randint(0, 2), "maxProperties": dice.randint(2, 5)}
        if dice.random() < 0.05:
            drawn["propertyNames"] = {"maxLength": 6}
        if dice.random() < 0.05 and names and not self.old:
            drawn["dependentRequired"] = {names[0]: [dice.choice(NAMES)]}
        return drawn

    def array(self, depth: int) -> dict[str, Any]:
        dice = self.dice
        drawn: dict[str, Any] = {"type": "array", "items": self.node(depth - 1)}
        if dice.random() < 0.3:
            drawn |= {"minItems": dice.randint(0, 2), "maxItems": dice.randint(2, 4)}
        if dice.random() < 0.1:
            drawn["uniqueItems"] = True
        if dice.random() < 0.1:
            drawn["contains"] = self.leaf()
        return drawn

    def tuple(self, depth: int) -> dict[str, Any]:
        dice = self.dice
        head = [self.node(depth - 1) for _ in range(dice.randint(1, 3))]
        first, rest = ("items", "additionalItems") if self.old else ("prefixItems", "items")
        drawn: dict[str, Any] = {"type": "array", first: head}
        if dice.random() < 0.7:
            drawn[rest] = False if dice.random() < 0.6 else self.leaf()
        if dice.random() < 0.5:
            drawn["minItems"] = len(head)
        return drawn


def random_value(schema: Any, dice: Random) -> Any:
    """A value that fits the schema if a few tries find one, else one that nearly does."""
    root = schema if isinstance(schema, dict) else {}
    value: Any = None
    try:
        judge = validator_of(root)
        for _ in range(6):
            value = _value(schema, root, dice, 0)
            if judge.is_valid(value):
                break
    except (jsonschema.exceptions.UnknownType, Unresolvable, TypeError):  # a vendor's own dialect
        return value
    return value


def _value(schema: Any, root: dict[str, Any], dice: Random, depth: int) -> Any:
    if not isinstance(schema, dict) or depth > 12:
        return dice.choice((None, 1, "x", True, {}, []))
    if "$ref" in schema:
        found = _target(schema["$ref"], root)
        return _value({**found, **{k: v for k, v in schema.items() if k != "$ref"}}, root, dice, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return dice.choice(schema["enum"])
    for keyword in ("anyOf", "oneOf"):
        if schema.get(keyword):
            rest = {key: each for key, each in schema.items() if key != keyword}
            return _value(_merged(rest, dice.choice(schema[keyword])), root, dice, depth + 1)
    if schema.get("allOf"):
        merged = {key: each for key, each in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            merged = _merged(merged, part)
        return _value(merged, root, dice, depth + 1)
    kinds = schema.get("type", "object" if "properties" in schema else None)
    kind = dice.choice(kinds) if isinstance(kinds, list) and kinds else kinds
    if kind == "object":
        return _object(schema, root, dice, depth)
    if kind == "array":
        return _array(schema, root, dice, depth)
    if kind == "string":
        return _string(schema, dice)
    if kind in ("integer", "number"):
        return _number(schema, dice, whole=kind == "integer")
    return {"boolean": dice.random() < 0.5, "null": None}.get(kind or "", dice.choice((3, "x", None, {"a": 1}, [2])))


def _target(reference: Any, root: dict[str, Any]) -> dict[str, Any]:
    homes = {**root.get("$defs", {}), **root.get("definitions", {})}
    for name, found in homes.items():
        step = quote(name.replace("~", "~0").replace("/", "~1"), safe="~")
        if isinstance(found, dict) and reference in (f"#{found.get('$anchor')}", f"#/$defs/{step}", f"#/$defs/{name}"):
            return found
        if isinstance(found, dict) and reference in (f"#/definitions/{step}", f"#/definitions/{name}"):
            return found
    return root if reference == "#" else {}


def _merged(left: dict[str, Any], right: Any) -> dict[str, Any]:
    if not isinstance(right, dict):
        return left
    both = {**left, **right}
    for key in ("properties", "patternProperties"):
        if key in left and key in right:
            both[key] = {**left[key], **right[key]}
    if "required" in left and "required" in right:
        both["required"] = [*left["required"], *right["required"]]
    return both


def _object(schema: dict[str, Any], root: dict[str, Any], dice: Random, depth: int) -> dict[str, Any]:
    properties = schema.get("properties") or {}
    needed = [*schema.get("required", ()), *(schema.get("then") or {}).get("required", ())]
    value = {
        name: _value(sub, root, dice, depth + 1)
        for name, sub in properties.items()
        if name in needed or (depth < 4 and dice.random() < 0.6)
    }
    others = schema.get("additionalProperties", True)
    for name in needed:
        if name not in value:
            value[name] = _value(others, root, dice, depth + 1)
    if others is not False and dice.random() < 0.2:
        value[dice.choice(NAMES)] = _value(others, root, dice, depth + 1)
    return value


def _array(schema: dict[str, Any], root: dict[str, Any], dice: Random, depth: int) -> list[Any]:
    items = schema.get("items", True)
    head = schema.get("prefixItems", items if isinstance(items, list) else [])
    rest = schema.get("additionalItems", True) if isinstance(items, list) else items
    value = [_value(sub, root, dice, depth + 1) for sub in head]
    least = schema.get("minItems", 0)
    more = max(least - len(value), dice.randint(0, 2) if depth < 5 else 0)
    return value if rest is False else [*value, *(_value(rest, root, dice, depth + 1) for _ in range(more))]


def _string(schema: dict[str, Any], dice: Random) -> str:
    if schema.get("pattern") in PATTERNS:
        return dice.choice(PATTERNS[schema["pattern"]])
    text: str = dice.choice(WORDS)
    least: int = schema.get("minLength", 0)
    most: int | None = schema.get("maxLength")
    text += "a" * (least - len(text))
    return text if most is None else text[:most]


def _number(schema: dict[str, Any], dice: Random, *, whole: bool) -> float:
    step = schema.get("multipleOf", 1)
    if not whole and dice.random() < 0.4 and "multipleOf" not in schema:
        return dice.choice((0.5, 2.25, 1e-3))
    return int(dice.choice((0, 1, 2, -1, 2**53)) if "maximum" not in schema else dice.randint(0, 3)) * int(step or 1)
