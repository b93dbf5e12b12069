"""`Parser`: any chunking, any text, snapshots that stay, parts that keep their identity."""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.text.parser import Parser
from slipform.text.tree import PENDING, ParserDelta
from tests.conftest import examples

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=25,
)
jsonish = st.text(alphabet='{}[]",:\\/u0d8cetrufalsn1-.+ \n\té😀\x00x', max_size=40)
modest = settings(max_examples=examples(160), deadline=None)


def cut(text: Any, places: Iterable[int]) -> list[Any]:
    """`text` in pieces, cut at `places` taken modulo its length."""
    at = sorted({place % (len(text) + 1) for place in places})
    return [text[start:stop] for start, stop in zip([0, *at], [*at, len(text)], strict=True)]


def snapshots(chunks: Iterable[Any], **options: Any) -> list[Parser]:
    out = [Parser(**options)]
    for chunk in chunks:
        out.append(out[-1].feed(chunk))
    return out


def parse(*chunks: str | bytes, **options: Any) -> Parser:
    return snapshots(chunks, **options)[-1].finish()


def nodes(value: Any, path: tuple[str | int, ...] = ()) -> dict[tuple[str | int, ...], Any]:
    found = {path: value}
    if isinstance(value, dict):
        for key, child in value.items():
            found |= nodes(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            found |= nodes(child, (*path, index))
    return found


def same(left: Any, right: Any) -> bool:
    """Equal, types and order of keys included."""
    return json.dumps(left) == json.dumps(right)


def is_prefix(part: Any, whole: Any, *, open_path: bool = True) -> bool:
    """Whether `part` is `whole` with things missing at the end of the one open path, and nothing else."""
    if not open_path:
        return same(part, whole)
    if isinstance(part, str):
        return isinstance(whole, str) and whole.startswith(part)
    if isinstance(part, list):
        return isinstance(whole, list) and all(
            is_prefix(item, whole[index], open_path=index == len(part) - 1) for index, item in enumerate(part)
        )
    if isinstance(part, dict):
        if not isinstance(whole, dict) or list(part) != list(whole)[: len(part)]:
            return False
        last = list(part)[-1] if part else None
        return all(is_prefix(child, whole[key], open_path=key == last) for key, child in part.items())
    return same(part, whole)


def apply(deltas: Iterable[ParserDelta], value: Any) -> Any:
    holder = [copy.deepcopy(value)]
    for delta in deltas:
        target: Any = holder
        *steps, last = (0, *delta.path)
        for step in steps:
            target = target[step]
        new = copy.deepcopy(target[last] + delta.value) if delta.kind == "text" else copy.deepcopy(delta.value)
        if isinstance(target, list) and last == len(target):
            target.append(new)
        else:
            target[last] = new
    return holder[0]


class TestValidJson:
    @pytest.mark.covers("S3-01", "S3-67", "S3-68")
    @modest
    @given(values, st.booleans(), st.sampled_from([None, 1]), st.lists(st.integers(0, 500)))
    def test_any_chunking_gives_what_a_whole_parse_gives(
        self, value: Any, ascii_only: bool, indent: int | None, places: list[int]
    ) -> None:
        text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
        parsed = parse(*cut(text, places))
        assert parsed.complete
        assert parsed.error is None
        assert same(parsed.value, json.loads(text))

    @pytest.mark.covers("S3-67")
    @modest
    @given(values, st.lists(st.integers(0, 500)))
    def test_bytes_may_be_split_inside_a_character(self, value: Any, places: list[int]) -> None:
        data = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        assert same(parse(*cut(data, places)).value, json.loads(data))

    @modest
    @given(values)
    def test_every_prefix_shows_a_prefix_of_the_value(self, value: Any) -> None:
        text = json.dumps(value, indent=1)
        parser = Parser()
        for char in text:
            parser = parser.feed(char)
            assert parser.error is None
            shown = parser.value
            assert shown is PENDING or is_prefix(shown, value)

    @pytest.mark.parametrize("text", ["0", "-0", "12", "-1.5e+3", "1E400", '"x"', "true", " null ", "[]", " { } "])
    def test_any_value_may_stand_at_the_root(self, text: str) -> None:
        parsed = parse(*text)
        assert parsed.complete
        assert same(parsed.value, json.loads(text))

    def test_integers_keep_all_their_digits(self) -> None:
        assert parse("[12345678901234567890123456789]").value == [12345678901234567890123456789]
        digits = "9" * 4300
        assert str(parse(f"[-{digits}]").value[0]) == f"-{digits}"

    def test_an_integer_python_would_refuse_is_an_error_not_an_exception(self) -> None:
        error = parse("[" + "1" * 4301 + "]").error
        assert error is not None
        assert error.code == "number_too_long"

    def test_a_lower_limit_of_the_interpreter_is_respected(self) -> None:
        limit = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(640)
        try:
            error = parse("[" + "1" * 1000 + "]").error
        finally:
            sys.set_int_max_str_digits(limit)
        assert error is not None
        assert error.code == "number_too_long"

    def test_a_number_beyond_the_floats_is_infinite_and_noted(self) -> None:
        parsed = parse("[1e400, -1e400]")
        assert parsed.value == [math.inf, -math.inf]
        assert [note.code for note in parsed.notes] == ["number_overflow"] * 2

    def test_the_last_of_two_equal_keys_counts_and_is_noted(self) -> None:
        parsed = parse('{"a": 1, "b": 2, "a": {"c": 3}}')
        assert list(parsed.value.items()) == [("a", {"c": 3}), ("b", 2)]
        assert [(note.code, note.index, note.before) for note in parsed.notes] == [("duplicate_key", 19, "a")]


class TestWhatShows:
    def test_nothing_shows_before_the_first_value_has_begun(self) -> None:
        assert Parser().value is PENDING
        assert Parser().feed("  ").value is PENDING
        assert Parser().feed("12").value is PENDING
        assert not PENDING
        assert repr(PENDING) == "PENDING"

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ('"', ""),
            ('"ab', "ab"),
            ('"ab\\', "ab"),
            ('"ab\\n', "ab\n"),
            ('"ab\\u00e', "ab"),
            ('"ab\\u00e9', "abé"),
            ('"\\ud83d', ""),
            ('"\\ud83d\\', ""),
            ('"\\ud83d\\ude0', ""),
            ('"\\ud83d\\ude00', "😀"),
            ("[", []),
            ("[1", []),
            ("[1,", [1]),
            ("[1,tru", [1]),
            ("[true", [True]),
            ('{"a', {}),
            ('{"a":', {}),
            ('{"a":1', {}),
            ('{"a":1 ', {"a": 1}),
            ('{"a":"', {"a": ""}),
            ('{"a":[', {"a": []}),
            ('{"a":1,"a":2', {"a": 1}),
        ],
    )
    def test_a_value_shows_as_soon_as_it_cannot_be_taken_back(self, text: str, shown: Any) -> None:
        assert Parser().feed(text).value == shown
        assert snapshots(text)[-1].value == shown

    def test_half_a_pair_at_a_chunk_edge_is_joined_even_when_it_came_raw(self) -> None:
        assert parse('"\ud83d', '\ude00"').value == "😀"
        assert parse('"\ud83d\ude00"').value == "😀"

    def test_half_a_pair_alone_is_kept_and_noted(self) -> None:
        for text in ('"\\ud83dx"', '"\\ud83d\\n"', '"\\ud83d"', '"\\udc00"', '"\\ud83d\\ud83d\\ude00"'):
            parsed = parse(*text)
            assert parsed.value == json.loads(text)
            assert [note.code for note in parsed.notes] == ["lone_surrogate"]

    def test_the_open_path_says_what_may_still_change(self) -> None:
        assert Parser().open_path is None
        assert Parser().feed('"a').open_path == ()
        assert Parser().feed('{"a": [1, {"b": "x').open_path == ("a", 1, "b")
        assert Parser().feed('{"a": [1, {"b": "x"').open_path == ("a", 1)
        assert Parser().feed('{"a": [1, {"b": "x"}]').open_path == ()
        assert Parser().feed('{"a": [1, {"b": "x"}]}').open_path is None

    def test_values_are_plain_and_every_serialiser_takes_them(self) -> None:
        text = '{"a": [1, {"b": "' + "x" * 3000
        for chunk in snapshots(cut(text, range(0, 3000, 7)))[8:]:
            assert type(chunk.value) is dict
            assert orjson.loads(orjson.dumps(chunk.value)) == json.loads(json.dumps(chunk.value)) == chunk.value


class TestSnapshots:
    @pytest.mark.covers("S3-01", "C34")
    @modest
    @given(values, st.lists(st.integers(0, 500)), st.booleans())
    def test_old_snapshots_keep_their_value(self, value: Any, places: list[int], read_at_once: bool) -> None:
        chunks = cut(json.dumps(value), places)
        taken = [Parser()]
        copies: list[Any] = [PENDING]
        for chunk in chunks:
            taken.append(taken[-1].feed(chunk))
            if read_at_once:
                copies.append(copy.deepcopy(taken[-1].value))
        if not read_at_once:
            copies = [parser.value for parser in snapshots(chunks)]
        assert [parser.value for parser in taken] == copies

    @pytest.mark.covers("S3-73", "S3-74")
    @modest
    @given(values, st.lists(st.integers(0, 500)), st.integers(0, 3))
    def test_what_did_not_change_is_the_same_object(self, value: Any, places: list[int], skip: int) -> None:
        """Whether the values are read at once, later, or only some of them at once."""
        taken = [Parser()]
        for number, chunk in enumerate(cut(json.dumps({"root": [value, value]}), places)):
            taken.append(taken[-1].feed(chunk))
            if skip and number % skip == 0:
                assert taken[-1].value is taken[-1].value
        for before, after in pairwise(taken):
            old, new = nodes(before.value), nodes(after.value)
            for path, node in old.items():
                if isinstance(node, dict | list) and same(new[path], node):
                    assert new[path] is node

    @pytest.mark.parametrize("hold", [0, 1, 2, 9999])
    @pytest.mark.parametrize("kind", ["array", "object", "nested"])
    def test_wide_containers_stay_as_they_were_however_many_are_held(self, kind: str, hold: int) -> None:
        items = [f"v{n}" for n in range(150)]
        whole: Any = {"array": items, "object": {f"k{n}": v for n, v in enumerate(items)}}.get(kind)
        if kind == "nested":
            whole = [*range(50), {f"k{n}": [*range(40), items[:60]] for n in range(40)}]
        held: list[tuple[Any, str]] = []
        parser = Parser()
        for chunk in cut(json.dumps(whole), range(0, 9000, 11)):
            parser = parser.feed(chunk)
            held.append((parser.value, repr(parser.value)))
            del held[: max(0, len(held) - hold)]
        assert all(repr(value) == dumped for value, dumped in held)
        assert same(parser.value, whole)

    @pytest.mark.parametrize("piece", ['"x", ', '"y', '{"a": [1, '])
    def test_a_wide_container_is_not_copied_per_chunk_while_only_the_last_value_is_held(self, piece: str) -> None:
        """Two lists take turns: their identities are told apart because the frame keeps both alive."""
        parser = Parser().feed("[" + "1, " * 100)
        frame = parser.cursor[2].frame
        lists: set[int] = set()
        value = None
        for _ in range(20):
            value = parser.value
            lists.update(id(version.shown) for version in frame.versions)
            parser = parser.feed(piece)
        assert value is not None
        assert len(lists) == 2

    def test_a_part_that_is_held_alone_is_not_written_to(self) -> None:
        parser = Parser().feed('{"a": [' + "1, " * 100)
        inner = parser.value["a"]
        for _ in range(5):
            parser = parser.feed('"x", ')
            assert parser.value["a"][-1] == "x"
        assert inner == [1] * 100

    def test_a_reader_who_changes_a_value_cannot_make_the_parser_raise(self) -> None:
        parser = Parser().feed('{"a": [' + "1, " * 100 + '"x')
        for _ in range(6):
            parser.value["a"].clear()
            parser.value.clear()
            parser = parser.feed("y")
        wide = Parser().feed("{" + ", ".join(f'"{n}": 1' for n in range(60)) + ', "open": "x')
        for _ in range(6):
            wide.value.clear()
            wide = wide.feed("y")
        assert parser.feed('"]}').complete
        assert wide.feed('"}').complete
        old = Parser().feed('{"a": [1, {"b": "x')
        assert old.feed('y"').value == {"a": [1, {"b": "xy"}]}
        for part in (old.value["a"], old.value):
            part.clear()
            assert old.feed('z"}]}').value == {"a": [1, {"b": "xz"}]}

    def test_a_long_string_held_in_every_length(self) -> None:
        parser = Parser().feed('{"a": "' + "x" * 2000)
        held = []
        for n in range(50):
            held.append((parser.value["a"], 2000 + 3 * n))
            parser = parser.feed("xyz" if n < 49 else 'xyz"}')
        assert all(len(text) == length for text, length in held)
        assert parser.value["a"] == "x" * 2000 + "xyz" * 50

    @pytest.mark.covers("S3-01")
    @modest
    @given(values, st.text(max_size=3), st.lists(st.integers(0, 200)), st.integers(0, 200))
    def test_an_older_snapshot_can_be_fed_something_else(
        self, value: Any, other: str, places: list[int], back: int
    ) -> None:
        chunks = cut(json.dumps([value, value]), places)
        taken = snapshots(chunks)
        index = back % len(taken)
        final = taken[-1].value
        fork = taken[index].feed(other)
        straight = parse(*chunks[:index], other) if index else parse(other)
        assert fork.finish().value == straight.value
        assert fork.finish().error == straight.error
        for path, node in nodes(taken[index].value).items():
            if isinstance(node, dict | list) and same(nodes(fork.value).get(path, PENDING is None), node):
                assert nodes(fork.value)[path] is node
        assert taken[-1].value is final
        assert apply(fork.deltas(), taken[index].value) == fork.value

    def test_finishing_does_not_stop_the_one_it_was_called_on(self) -> None:
        parser = Parser().feed("[1")
        assert parser.finish().error is not None
        assert parser.error is None
        assert parser.feed("2]").finish().value == [12]


class TestDeltas:
    @modest
    @given(values, st.lists(st.integers(0, 500)), st.booleans())
    def test_deltas_make_the_parents_value_into_the_childs(self, value: Any, places: list[int], late: bool) -> None:
        parser = Parser()
        pairs = []
        for chunk in cut(json.dumps([value, value]), places):
            after = parser.feed(chunk)
            pairs.append((parser, after, () if late else after.deltas()))
            parser = after
        for before, after, deltas in pairs:
            assert apply(after.deltas() if late else deltas, before.value) == after.value

    def test_repeated_keys_are_set_again(self) -> None:
        taken = snapshots(cut('{"a": "x", "a": [1], "a": "yz", "a": {"b": 2}}', range(0, 60, 3)))
        for before, after in pairwise(taken):
            assert apply(after.deltas(), before.value) == after.value

    def test_a_growing_string_says_only_what_was_added(self) -> None:
        parser = Parser().feed('{"a": {"b": "x')
        assert parser.feed("yz").deltas() == (ParserDelta(("a", "b"), "text", "yz"),)
        assert parser.feed('"').deltas() == ()
        assert parser.feed('y", "c": [true, {').deltas() == (
            ParserDelta(("a", "b"), "text", "y"),
            ParserDelta(("a", "c"), "open", []),
            ParserDelta(("a", "c", 0), "set", True),
            ParserDelta(("a", "c", 1), "open", {}),
        )


def test_pending_is_false_and_shows_its_name() -> None:
    assert not PENDING
    assert (str(PENDING), repr(PENDING), f"{PENDING}") == ("PENDING", "PENDING", "PENDING")
