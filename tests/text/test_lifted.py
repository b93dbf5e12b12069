"""Text in a vendor's shape becomes text in the caller's while it grows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipform.errors import SchemaError
from slipform.schema.lowering.lowered import lower
from slipform.text.lifted import LiftedText
from tests.conftest import examples
from tests.schema.lowering_encode import encode
from tests.schema.lowering_strategies import schemas, validator, values


def lifted_in_pieces(lifted: LiftedText, text: str, size: int) -> list[str]:
    return [lifted.feed(text[at : at + size]) for at in range(0, len(text), size)]


@pytest.mark.parametrize("open_objects", ["auto", "kept", "closed"])
@pytest.mark.parametrize("dialect", ["openai", "anthropic", "cohere", "gemini"])
@settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_the_text_is_that_of_the_whole_lifted_value(dialect: str, open_objects: Any, data: st.DataObject) -> None:
    schema = data.draw(schemas())
    value = data.draw(values(schema, schema))
    if not validator(schema).is_valid(value):
        return
    try:
        lowered = lower(schema, dialect, open_objects=open_objects)
        sent = encode(lowered, value)
    except SchemaError:
        return
    if lowered.plan is None:
        return
    text = json.dumps(sent, indent=data.draw(st.sampled_from([None, 1])), ensure_ascii=data.draw(st.booleans()))
    lifted = LiftedText(lowered.plan)
    text += "\n"  # ends a number at the root
    pieces = lifted_in_pieces(lifted, text, data.draw(st.sampled_from([1, 2, 3, 7, 10_000])))
    assert not lifted.failed
    assert json.loads("".join(pieces)) == lowered.lift(sent)
