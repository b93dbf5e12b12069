"""Whatever is given, the answer is a value or a `SchemaError`."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.errors import SchemaError
from slipform.schema import Schema, example, strict_findings, summarize
from tests.conftest import examples

KEYWORDS = st.sampled_from(
    [
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "prefixItems",
        "anyOf",
        "allOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
        "enum",
        "const",
        "$ref",
        "$defs",
        "definitions",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "minLength",
        "maxItems",
        "uniqueItems",
        "contains",
        "patternProperties",
        "propertyNames",
        "dependentRequired",
        "dependencies",
        "unevaluatedProperties",
        "$id",
        "$anchor",
        "$dynamicRef",
        "$dynamicAnchor",
        "title",
        "default",
        "description",
        "minContains",
        "multipleOf",
        "exclusiveMinimum",
        "a",
        "b",
    ]
)
SCALARS = st.sampled_from(
    [None, True, False, 0, 1, -1.5, 10**30, "string", "object", "array", "integer", "#", "#/$defs/a", "#/properties/a",
     "#x", "http://a.example/b", "(a+)+$", "[", "date", "", "x", "\ud800"]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=4),
    max_leaves=14,
)


@settings(max_examples=examples(200), deadline=None)
@given(st.dictionaries(KEYWORDS, VALUES, max_size=5), VALUES)
def test_garbage_is_answered_or_refused(document: dict[str, Any], value: Any) -> None:
    for found in strict_findings(document):
        assert found.path.startswith("$")
    try:
        schema: Schema[Any] = Schema.of(document)
    except SchemaError:
        return
    for violation in schema.validate(value) + schema.check(value):
        assert violation.message
        json.dumps(violation.to_dict())
    assert len(summarize(document, 50).text) <= 50
    made = example(document)
    assert made is None or schema.validate(made.value) == []
