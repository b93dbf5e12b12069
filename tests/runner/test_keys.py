"""What tells rows apart."""

from __future__ import annotations

import random

import pytest

from slipform.addons.batch.journal import KeySet, row_key
from slipform.errors import ConfigError


def test_the_key_is_place_and_content_unless_a_column_is_named() -> None:
    assert row_key(1, {"a": 1}) == row_key(1, {"a": 1})
    assert row_key(1, {"a": 1}) != row_key(2, {"a": 1})
    assert row_key(1, {"a": 1}) != row_key(1, {"a": 2})
    assert row_key(5, {"id": "x"}, "id") == "x"


@pytest.mark.parametrize("row", [{}, {"id": None}, {"id": ""}])
def test_a_row_without_its_key_is_an_error(row: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="Row 7 has no value in the key column 'id'"):
        row_key(7, row, "id")


def test_seen_keys_are_found_however_many_there_are() -> None:
    seen = KeySet()
    keys = [str(random.Random(number).getrandbits(64)) for number in range(5000)]
    assert all(seen.add(key) for key in keys)
    assert not any(seen.add(key) for key in keys)
    assert seen.add("another")
