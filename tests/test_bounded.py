"""Caches are bounded by the bytes that they keep alive."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipform.bounded import BoundedCache

STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 150)), max_size=60)


@given(STEPS)
def test_neither_limit_is_ever_exceeded_and_the_account_is_right(steps: list[tuple[int, int]]) -> None:
    cache = BoundedCache[int, int]("test", entries=4, max_bytes=100)
    sizes: dict[int, int] = {}
    for key, size in steps:
        cache.put(key, size, size)
        sizes[key] = size
        kept = [each for each in sizes if each in cache]
        assert len(kept) == len(cache) <= 4
        assert cache.held_bytes == sum(sizes[each] for each in kept) <= 100
        assert (cache.get(key) == size) is (size <= 100)


def test_the_oldest_go_first_and_use_makes_a_value_the_newest() -> None:
    cache = BoundedCache[str, str]("test", entries=3, max_bytes=100)
    for key in "abc":
        cache.put(key, key, 10)
    assert cache.get("a") == "a"
    assert cache.use("a") == "a"
    assert cache.use("z") is None
    cache.put("d", "d", 10)
    assert [key in cache for key in "abcd"] == [True, False, True, True]


def test_a_value_may_be_put_anew_and_all_may_be_forgotten() -> None:
    cache = BoundedCache[str, int]("test", entries=3, max_bytes=100)
    cache.put("a", 1, 10)
    cache.put("a", 2, 10)
    assert (cache.get("a"), cache.held_bytes) == (2, 10)
    cache.clear()
    assert (len(cache), cache.held_bytes) == (0, 0)
