"""When two answers say the same: value by value, and lists by what their items say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipform.addons.evidence.comparison import compare, list_pairs, same_value

SAME: list[tuple[Any, Any]] = [
    (36, "36"),
    (1, 1.0),
    (1234.5, "1,234.50"),
    (1234.5, "1.234,50"),
    ("1.234", 1234),
    ("1.234", 1.234),
    (42, "forty-two"),
    (0.15, "15%"),
    ("−5", -5),
    ("2024-03-05", "March 5th, 2024"),
    ("03/04/2024", "2024-04-03"),
    ("03/04/2024", "2024-03-04"),
    ("14:30", "2:30 pm"),
    ("Anna Kowalska", "KOWALSKA, Anna"),
    ("café", "cafe\u0301"),
    ("two  words", "Two words"),
    ("INV-7", "inv 7"),
    ("+49 30 1234", "+49301234"),
    ("Ada@Example.com", "ada@example.com "),
    ("“quoted”", '"quoted"'),
    (None, None),
    ("", " "),
    ("…", "…"),
]
OTHER: list[tuple[Any, Any]] = [
    ("-5", "5"),
    ("-5 °C", "5 °C"),
    ("Anna", "Anne"),
    ("2024-03-05", "2024-03-06"),
    ("sales@acme.com", "support@acme.com"),
    ("a.b@c.com", "ab@c.com"),
    ("x/y/z", "xy/z"),
    (True, "true"),
    (True, 1),
    (None, ""),
    (None, "null"),
    (1.5, 15),
    ("1.5 kg", "15 kg"),
    ("C", "C++"),
    ("?", "!"),
    ("", "x"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_value_written_otherwise(one: Any, other: Any) -> None:
    assert same_value(one, other)
    assert same_value(other, one)


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_another_value(one: Any, other: Any) -> None:
    assert not same_value(one, other)
    assert not same_value(other, one)


def verdicts(expected: Any, answer: Any) -> list[tuple[str, str]]:
    return [(match.field, match.verdict) for match in compare(expected, answer)]


@pytest.mark.parametrize(
    ("expected", "answer", "found"),
    [
        ({"a": 1, "b": 2}, {"b": 3}, [("/a", "missing"), ("/b", "wrong")]),
        ({"a": None}, {}, [("/a", "right")]),
        ({}, {"a": None}, []),
        ({"a": None}, {"a": "x"}, [("/a", "extra")]),
        ({"a": []}, {"a": []}, [("/a", "right")]),
        ({"a": []}, {"a": ["x"]}, [("/a/*", "extra")]),
        ({"a": ["x"]}, {"a": {"b": 1}}, [("/a/*", "missing"), ("/a/b", "extra")]),
        ("x", "X", [("", "right")]),
        (["a", "a", "b"], ["b", "a"], [("/*", "right"), ("/*", "missing"), ("/*", "right")]),
        (["a", "b"], ["c", "b"], [("/*", "wrong"), ("/*", "right")]),
    ],
)
def test_what_is_right_wrong_missing_and_extra(expected: Any, answer: Any, found: list[tuple[str, str]]) -> None:
    assert verdicts(expected, answer) == found


def test_items_are_paired_by_what_they_say_not_by_their_place() -> None:
    expected = [{"name": "tea", "price": 2}, {"name": "milk", "price": 1.5}, {"name": "bread", "price": 3}]
    answer = [{"name": "Milk", "price": 1.5}, {"name": "bread", "price": 4}, {"name": "rice", "price": 9}]
    matches = compare({"items": expected}, {"items": answer})
    assert [(each.verdict, each.expected_at, each.answered_at) for each in matches] == [
        ("missing", "/items/0/name", None),
        ("missing", "/items/0/price", None),
        ("right", "/items/1/name", "/items/0/name"),
        ("right", "/items/1/price", "/items/0/price"),
        ("right", "/items/2/name", "/items/1/name"),
        ("wrong", "/items/2/price", "/items/1/price"),
        ("extra", None, "/items/2/name"),
        ("extra", None, "/items/2/price"),
    ]


def test_long_lists_and_deep_values_take_bounded_work() -> None:
    long = [{"n": number, "x": "a"} for number in range(3000)]
    other = [{"n": -number - 1, "x": "a"} for number in range(3000)]
    assert sum(match.verdict == "right" for match in compare(long, other)) == 3000
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    assert [match.verdict for match in compare(deep, deep)] == ["right"]


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(_VALUES)
def test_a_value_is_the_same_as_itself(value: Any) -> None:
    assert {match.verdict for match in compare(value, value)} <= {"right"}


@given(st.lists(_VALUES, max_size=6), st.randoms())
def test_the_order_of_items_does_not_matter(items: list[Any], chance: Any) -> None:
    mixed = list(items)
    chance.shuffle(mixed)
    assert {match.verdict for match in compare(items, mixed)} <= {"right"}


@given(st.lists(_VALUES, max_size=6), st.lists(_VALUES, max_size=6))
def test_every_item_is_in_one_pair(one: list[Any], other: list[Any]) -> None:
    pairs = list_pairs(one, other)
    assert [a for a, _ in pairs if a is not None] == list(range(len(one)))
    assert sorted(b for _, b in pairs if b is not None) == list(range(len(other)))
