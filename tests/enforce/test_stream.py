"""What may leave while an answer still grows."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from slipform.enforce import LiveText

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(value=JSON, indent=st.sampled_from([None, 1, 4]), size=st.integers(1, 7))
def test_any_chunking_gives_the_compact_text_less_its_last_character(value: object, indent: int, size: int) -> None:
    text = json.dumps(value, indent=indent)
    live = LiveText()
    left = "".join(live.feed(text[at : at + size]) for at in range(0, len(text), size))
    assert left + live.held == json.dumps(value, separators=(",", ":"))
    assert len(live.held) == 1


def test_nothing_has_left_before_the_second_character() -> None:
    live = LiveText()
    assert live.feed(" {") == ""
    assert not live.sent
    assert live.feed('"') == "{"
    assert live.sent
