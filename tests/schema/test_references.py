"""Whatever spells a reference, every reader of a schema acts as if what it leads to were written in its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slipform.addons.batch.parquet import arrow_type
from slipform.addons.local.decoding.constrain import constrain
from slipform.addons.local.decoding.fit import fit
from slipform.enforce import ReleaseGate, Switches
from slipform.enforce.judging import SchemaHint
from slipform.enforce.patching import patch
from slipform.enforce.prompts import Wording, first_request, misnamed_keys, parts_of, wanted_keys
from slipform.ir import Message, ModelRequest
from slipform.schema import (
    JsonSchemaSpec,
    OutputStrategy,
    ResponseFormat,
    Schema,
    example,
    strict_findings,
    summarize,
)
from slipform.schema.document import lookup, with_plain_references
from slipform.schema.lowering.dialects import dialect_names
from slipform.schema.lowering.lowered import lower
from slipform.text.loads import load
from slipform.text.parser import Parser
from slipform.text.resolve import ResolveCache, resolve
from tests.schema.lowering_encode import encode

JsonSchema = dict[str, Any]


def closed(properties: JsonSchema, **more: Any) -> JsonSchema:
    return {
        **more,
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name != "next"],
        "additionalProperties": False,
    }


PART = closed({"x": {"type": "integer", "minimum": 0}, "kind": {"enum": ["Red", "Blue"]}})
INTEGER: JsonSchema = {"type": "integer", "minimum": 0}
DRAFT_4 = "http://json-schema.org/draft-04/schema#"


class Kind:
    """One way to refer to `PART`: the reference, and the keywords of the document that it needs."""

    def __init__(self, reference: JsonSchema, around: JsonSchema, written: JsonSchema = PART) -> None:
        self.reference = reference
        self.around = around
        self.written = written
        self.kept = {key: around[key] for key in ("$schema",) if key in around}

    def documents(self) -> Iterator[tuple[str, JsonSchema, JsonSchema]]:
        """Where the reference stands; the document that refers, and the one that has it all written out."""
        yield "inside", {**self.around, **holder(self.reference)}, {**self.kept, **holder(self.written)}
        yield "root", {**self.around, **self.reference}, {**self.kept, **self.written}


def holder(part: JsonSchema) -> JsonSchema:
    return closed({"part": part, "n": {"type": "integer"}})


def chain(part: JsonSchema) -> JsonSchema:
    return {**PART, "properties": {**PART["properties"], "next": {"anyOf": [part, {"type": "null"}]}}}


KINDS = {
    "plain": Kind({"$ref": "#/$defs/Part"}, {"$defs": {"Part": PART}}),
    "percent": Kind({"$ref": "#/$defs/Part%3Cint%3E"}, {"$defs": {"Part<int>": PART}}),
    "tilde": Kind({"$ref": "#/$defs/a~1b~0c"}, {"$defs": {"a/b~c": PART}}),
    "twice": Kind({"$ref": "#/$defs/First"}, {"$defs": {"First": {"$ref": "#/$defs/Part"}, "Part": PART}}),
    "anchor": Kind({"$ref": "#part"}, {"$defs": {"P": {"$anchor": "part", **PART}}}),
    "id": Kind(
        {"$ref": "part.json"},
        {"$id": "https://example.test/schemas/root.json", "$defs": {"P": {"$id": "part.json", **PART}}},
    ),
    "inside-id": Kind(
        {"$ref": "https://example.test/part.json"},
        {
            "$defs": {
                "P": {
                    "$id": "https://example.test/part.json",
                    **closed({"x": {"$ref": "#/$defs/N"}, "kind": {"enum": ["Red", "Blue"]}}),
                    "$defs": {"N": INTEGER},
                },
                "N": {"type": "boolean"},
            }
        },
    ),
    "draft-4": Kind({"$ref": "#part"}, {"$schema": DRAFT_4, "definitions": {"P": {"id": "#part", **PART}}}),
    "dynamic": Kind({"$dynamicRef": "#part"}, {"$defs": {"P": {"$dynamicAnchor": "part", **PART}}}),
    "loop": Kind(
        {"$ref": "#/$defs/Part"},
        {"$defs": {"Part": chain({"$ref": "#/$defs/Part"})}},
        chain(chain(chain(chain({"type": "null"})))),
    ),
    "anchored-loop": Kind(
        {"$ref": "#part"},
        {"$defs": {"P": {"$anchor": "part", **chain({"$ref": "#part"})}}},
        chain(chain(chain(chain({"type": "null"})))),
    ),
}

GOOD: JsonSchema = {"x": 1, "kind": "Red"}
PARTS: list[Any] = [
    GOOD,
    {**GOOD, "x": "1"},
    {**GOOD, "x": -1},
    {**GOOD, "kind": "red"},
    {"x": 1},
    {**GOOD, "more": 1},
    {"X": 1, "kind": "Blue"},
    [GOOD],
    7,
]


def values(document: JsonSchema, where: str) -> list[Any]:
    return PARTS if where == "root" else [{"part": part, "n": 1} for part in PARTS]


def validate(document: JsonSchema, where: str) -> Any:
    return [Schema.of(document).fits(value) for value in values(document, where)]


def explain(document: JsonSchema, where: str) -> Any:
    return [
        [(found.instance_path, found.keyword, found.message) for found in Schema.of(document).validate(value)]
        for value in values(document, where)
    ]


def made_example(document: JsonSchema, where: str) -> Any:
    made = example(document)
    assert made is not None
    assert Schema.of(document).fits(made.value)
    return {name: each for name, each in made.value.items() if name != "next"}


def summary(document: JsonSchema, where: str) -> Any:
    return takes(json.loads(summarize(document).text), document, where)


def summary_text(document: JsonSchema, where: str) -> Any:
    return json.loads(summarize(document).text)


def strict(document: JsonSchema, where: str) -> Any:
    """With one more breach in what is referred to."""
    text = json.dumps(document).replace('"additionalProperties": false', '"additionalProperties": true')
    found = ({type(each).__name__ for each in strict_findings(given)} for given in (json.loads(text), document))
    return list(found)


def lowering(document: JsonSchema, where: str) -> Any:
    seen: list[Any] = []
    for dialect in dialect_names():
        lowered = lower(document, dialect)
        vendor = Schema[Any]("lowered", dict(lowered.schema)) if dialect in ("openai", "anthropic") else None
        for value in values(document, where)[:1]:
            sent = encode(lowered, value)
            assert lowered.lift(sent) == value
            if vendor is not None:
                assert vendor.validate(sent) == []
        losses = {(loss.keyword, loss.action) for loss in lowered.report if loss.keyword not in ("$ref", "type")}
        seen.append((dialect, losses))
    return seen


def resolved(document: JsonSchema, where: str) -> Any:
    seen: list[Any] = []
    for value in values(document, where):
        parser, cache = Parser(), ResolveCache()
        for sign in json.dumps(value):
            parser = parser.feed(sign)
            seen.append(resolve(document, parser, cache))
    return [(type(each).__name__, getattr(each, "value", None)) for each in seen]


def live(document: JsonSchema, where: str) -> Any:
    seen: list[Any] = []
    for value in values(document, where):
        gate = ReleaseGate(Schema.of(document), Switches())
        seen.append([gate.feed(sign) for sign in json.dumps(value)])
        seen.append(gate.fault and (gate.fault.path, gate.fault.message))
    return seen


def patched(document: JsonSchema, where: str) -> Any:
    made = [patch(value, Schema.of(document)) for value in values(document, where)]
    return [(each.value, each.operations, len(each.violations)) for each in made]


def union_patched(document: JsonSchema, where: str) -> Any:
    """The same below a choice."""
    around = {key: each for key, each in document.items() if key.startswith("$d") or key in ("definitions", "$schema")}
    base = {key: document[key] for key in ("$id",) if key in document}
    part = document["properties"]["part"] if where == "inside" else {
        key: each for key, each in document.items() if key not in around and key not in base
    }  # fmt: skip
    if "$dynamicRef" in document:
        part = {"$dynamicRef": document["$dynamicRef"]}
        around.pop("$dynamicRef", None)
    chosen = {**around, **base, **closed({"part": {"anyOf": [part, {"type": "null"}]}})}
    made = [patch({"part": value}, Schema.of(chosen)) for value in PARTS]
    return [(each.value, each.operations, len(each.violations)) for each in made]


def parts(document: JsonSchema, where: str) -> Any:
    """What is asked for again, and what the question's own schema takes."""
    seen: list[Any] = []
    for value in values(document, where):
        found = parts_of(value, Schema.of(document).validate(value), document)
        if found is None or where == "root":
            seen.append(found and list(found.places))
            continue
        asked = Schema[Any]("parts", found.schema)
        tries = [dict.fromkeys(found.places, each) for each in (0, -1, "Red", "red", GOOD, {})]
        seen.append((list(found.places), [asked.fits(each) for each in tries]))
    return seen


def small_model(document: JsonSchema, where: str) -> Any:
    seen: list[Any] = [wanted_keys(document)]
    wanted = ResponseFormat(JsonSchemaSpec("s", document))
    request = ModelRequest("m", (Message.user("go"),), wanted)
    seen.append(first_request(request, OutputStrategy.NATIVE, Wording(list_keys=True)).request.messages)
    for value in values(document, where):
        found = misnamed_keys(value, Schema.of(document).validate(value), document)
        seen.append(found and list(found.places))
        if found is not None:
            tries = [dict.fromkeys(found.places, each) for each in (0, -1, "Red", "red", GOOD, {})]
            seen.append([Schema[Any]("parts", found.schema).fits(each) for each in tries])
    return seen


def takes(schema: JsonSchema, document: JsonSchema, where: str) -> list[bool]:
    return [Schema[Any]("held", schema).fits(value) for value in values(document, where)]


def grammar(document: JsonSchema, where: str) -> Any:
    seen: list[Any] = []
    for certain in (False, True):
        constrained = constrain(document, 400, exact=certain)
        rule = json.loads(constrained.rule.partition("%json ")[2])
        seen.append((constrained.exact, constrained.wrapped, takes(rule, document, where)))
    return seen


def fitted(document: JsonSchema, where: str) -> Any:
    found = fit(document, 400)
    return len(found.left_out), takes(found.schema, document, where)


def parquet(document: JsonSchema, where: str) -> Any:
    return str(arrow_type(document))


def loads(document: JsonSchema, where: str) -> Any:
    """Which of several texts is the answer, and which types its root may have."""
    hint = SchemaHint(Schema.of(document))
    good = json.dumps(values(document, where)[0])
    return hint.root_types, load(f"Say [1, 2] or {good}.", hint).value


CONSUMERS: dict[str, Callable[[JsonSchema, str], Any]] = {
    each.__name__: each
    for each in (
        validate, explain, made_example, summary, summary_text, strict, lowering, resolved, live, patched,
        union_patched, parts, small_model, grammar, fitted, parquet, loads,
    )
}  # fmt: skip

LOOPS = {"loop", "anchored-loop"}
UNLIKE = {"summary_text": LOOPS | {"inside-id"}, "parquet": LOOPS, "small_model": LOOPS, "fitted": LOOPS}
"""Who cannot treat a loop like something written out to some depth (it has to stay one, or be cut off); and what is
referred to inside of a definition keeps that definition in a summary."""


def cases() -> Iterator[Any]:
    for kind, spelled in KINDS.items():
        for where, document, written in spelled.documents():
            for name in CONSUMERS:
                if kind not in UNLIKE.get(name, ()):
                    yield pytest.param(document, written, where, name, id=f"{name}-{kind}-{where}")


@pytest.mark.parametrize(("document", "written", "where", "consumer"), list(cases()))
def test_a_reference_is_read_as_if_its_target_were_written_in_its_place(
    document: JsonSchema, written: JsonSchema, where: str, consumer: str
) -> None:
    act = CONSUMERS[consumer]
    assert act(document, where) == act(written, where)


def test_names_that_look_like_keywords_and_data_that_look_like_references_stay() -> None:
    document: JsonSchema = {
        "properties": {"$ref": {"type": "string"}, "$id": {"$ref": "#a"}, "id": {}, "$anchor": {}},
        "const": {"$ref": "#a"},
        "$defs": {"A": {"$anchor": "a", "enum": [{"$ref": "#a", "$id": "x"}]}, "100%": {}},
        "items": {"$ref": "#/$defs/100%25"},
    }
    assert with_plain_references(document) == {
        "properties": {"$ref": {"type": "string"}, "$id": {"$ref": "#/$defs/A"}, "id": {}, "$anchor": {}},
        "const": {"$ref": "#a"},
        "$defs": {"A": {"enum": [{"$ref": "#a", "$id": "x"}]}, "100%": {}},
        "items": {"$ref": "#/$defs/100%25"},
    }


def test_a_dynamic_reference_with_several_targets_stays_dynamic() -> None:
    tree = {"$id": "tree", "$dynamicAnchor": "node", "items": {"$dynamicRef": "#node"}}
    document = {"$id": "https://example.test/s", "$dynamicAnchor": "node", "$ref": "tree", "$defs": {"tree": tree}}
    plain = with_plain_references(document)
    assert plain["$ref"] == "#/$defs/tree"
    assert plain["$defs"]["tree"] == {"items": {"$dynamicRef": "#/$defs/tree"}}


def test_a_draft_that_does_not_know_dynamic_references_gets_none() -> None:
    document = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {"a": {"$dynamicRef": "#node"}},
        "definitions": {"n": {"$dynamicAnchor": "node", "type": "integer"}},
    }
    assert "$ref" not in with_plain_references(document)["properties"]["a"]


@pytest.mark.parametrize(
    "reference",
    ["#nowhere", "other.json", "http://[bad", "#/$defs/none", "https://json-schema.org/draft/2020-12/schema"],
)
def test_a_reference_that_leads_nowhere_stays_as_it_is(reference: str) -> None:
    document = {"items": {"$ref": reference}, "$defs": {"A": {"$anchor": "a"}}}
    plain = with_plain_references(document)
    assert plain["items"] == {"$ref": reference}
    assert lookup(plain, reference) is None


def test_a_document_with_plain_references_is_not_copied() -> None:
    document = {"properties": {"id": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"items": {"$ref": "#"}}}}
    assert with_plain_references(document) is document
