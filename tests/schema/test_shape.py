"""Shapes: one per document, with what is derived from it, within a bound."""

from __future__ import annotations

import gc
import weakref

import pytest

from slipform.bounded import live_caches
from slipform.errors import SchemaError
from slipform.schema import Schema
from slipform.schema.lowering import lower
from slipform.schema.python_types import cached_format, cached_schema
from slipform.schema.shape import MAX_DERIVED, Shape


def test_equal_documents_are_one_shape_and_another_order_of_keys_is_another() -> None:
    assert Shape.of({"type": "object", "title": "a"}) is Shape.of({"type": "object", "title": "a"})
    assert Shape.of({"type": "object", "title": "a"}) is not Shape.of({"title": "a", "type": "object"})


def test_a_document_that_is_changed_between_two_calls_is_another_shape() -> None:
    document = {"type": "object", "properties": {"a": {"type": "integer"}}, "title": "changed"}
    first = lower(document, "openai", open_objects="closed")
    document["properties"] = {"b": {"type": "integer"}}
    assert set(lower(document, "openai", open_objects="closed").schema["properties"]) == {"b"}
    assert set(first.schema["properties"]) == {"a"}


def test_what_is_no_json_has_no_shape() -> None:
    with pytest.raises(SchemaError):
        Shape.of({"enum": {1, 2}})


def test_a_value_is_built_once_and_the_oldest_go_first() -> None:
    shape = Shape.of({"title": "built once"})
    built: list[int] = []
    for number in (0, 0, *range(1, MAX_DERIVED), 0, MAX_DERIVED, 0):
        shape.derived(("number", number), lambda number=number: built.append(number) or [number])  # type: ignore[misc, func-returns-value]
    assert built == [*range(MAX_DERIVED + 1), 0]


def test_what_is_derived_counts_towards_the_limit_of_the_table() -> None:
    shapes = next(cache for cache in live_caches() if cache.name == "shapes")
    shapes.clear()  # near its limit, others would go for what is added
    before = shapes.held_bytes
    Shape.of({"title": "counted"}).derived("large", lambda: "x", lambda _: 1_000_000)
    assert shapes.held_bytes >= before + 1_000_000


def test_an_evicted_shape_is_freed_without_the_garbage_collector() -> None:
    shapes = next(cache for cache in live_caches() if cache.name == "shapes")
    document = {"type": "object", "properties": {"a": {"type": "integer"}}, "title": "evicted"}
    response_format = cached_format("evicted", document, strict=True)
    cached_schema(response_format.json_schema)
    lower(document, "openai", open_objects="closed")
    shape = weakref.ref(Shape.of(document))
    gc.disable()
    try:
        del response_format
        shapes.clear()
        assert shape() is None
    finally:
        gc.enable()


def test_a_schema_has_one_response_format() -> None:
    schema = Schema.of(list[int])
    assert schema.response_format is schema.response_format
