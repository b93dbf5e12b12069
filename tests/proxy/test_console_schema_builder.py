"""What the playground makes of a list of fields and of an example."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipform.addons.server.console.schema_builder import build_schema, schema_of_example
from slipform.errors import RequestError
from slipform.schema import Schema

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_an_example_is_valid_under_its_own_schema(value: Any) -> None:
    assert Schema.of({"type": "object", "properties": {"value": schema_of_example(value)}}).fits({"value": value})


def test_keys_that_some_items_lack_are_optional() -> None:
    items = schema_of_example([{"a": 1, "b": "x"}, {"a": 2.5}])["items"]
    assert items["required"] == ["a"]
    assert items["properties"] == {"a": {"type": "number"}, "b": {"type": "string"}}


def test_fields_are_read_as_on_the_command_line() -> None:
    assert build_schema({"fields": "name, age int"})["properties"]["age"] == {"type": "integer"}


@pytest.mark.parametrize("request_body", [{"fields": "name, age foo"}, {}])
def test_what_is_no_schema_is_an_error_that_says_why(request_body: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        build_schema(request_body)
