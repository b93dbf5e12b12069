"""The journal: whole lines, torn ends, passes and other jobs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from slipform.addons.batch.journal import Journal, JournalEntry, final_entries, missing_rows
from slipform.addons.batch.scheduler import RowWindow
from slipform.errors import ConfigError

JOB = {"version": 1, "input": "in.jsonl", "model": "fake/any", "prompt": "p"}


def entry(row: int, *, ok: bool = True, said: str = "") -> JournalEntry:
    line = f'{{"row":{row},"key":"k{row}",' + (f'"value":"{said}"}}' if ok else '"error":{}}')
    return JournalEntry(row, f"k{row}", ok, line.encode())


def begun(path: Path, rows: list[int]) -> Path:
    journal = Journal.open(path, JOB)
    for row in rows:
        journal.finish(entry(row))
    journal.close()
    return path


def rows_in(path: Path) -> list[int]:
    journal = Journal.open(path, JOB)
    try:
        return [each.row for each in final_entries(path, journal.segments)]
    finally:
        journal.close()


def test_rows_come_back_in_order_with_gaps_where_they_are_missing(tmp_path: Path) -> None:
    path = begun(tmp_path / "j", [2, 1, 4, 3, 7, 6])
    assert rows_in(path) == [1, 2, 3, 4, 6, 7]


def test_a_torn_end_is_cut_off_at_every_byte(tmp_path: Path) -> None:
    path = begun(tmp_path / "j", [1, 2, 3])
    whole = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == 10]
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        kept = sum(end <= size for end in ends) - 1
        assert rows_in(path) == list(range(1, kept + 1))
        if kept >= 0:
            assert path.stat().st_size == ends[kept]
        path.unlink()


@pytest.mark.parametrize(
    "damage", [b"\0" * 40, b'{"crc":"00000000","done":{"row":9,"key":"x","value":1}}\n', b"\n\n", b"{"]
)
def test_a_damaged_end_is_cut_off_and_told(tmp_path: Path, damage: bytes) -> None:
    path = begun(tmp_path / "j", [1, 2])
    with path.open("ab") as file:
        file.write(damage)
    journal = Journal.open(path, JOB)
    assert journal.cut == len(damage)
    journal.finish(entry(3))
    journal.close()
    assert rows_in(path) == [1, 2, 3]


def damaged(path: Path, words: bytes, flip: int = 1) -> Path:
    data = bytearray(path.read_bytes())
    data[data.index(words) + 1] ^= flip
    path.write_bytes(data)
    return path


def test_a_flipped_bit_costs_its_row_and_no_other(tmp_path: Path) -> None:
    path = damaged(begun(tmp_path / "j", [1, 2, 3, 5, 4]), b'"k2"')
    size = path.stat().st_size
    journal = Journal.open(path, JOB)
    assert (journal.damaged, journal.cut) == (1, 0)
    assert [each.row for each in final_entries(path, journal.segments)] == [1, 3, 4, 5]
    assert list(missing_rows(final_entries(path, journal.segments))) == [2]
    journal.finish(entry(2, said="again"))
    journal.close()
    assert path.stat().st_size > size
    assert rows_in(path) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("at", range(0, 300, 7))
def test_whatever_byte_is_damaged_at_most_two_rows_are_lost(tmp_path: Path, at: int) -> None:
    path = begun(tmp_path / "j", [1, 2, 3, 4, 5, 6])
    data = bytearray(path.read_bytes())
    start = data.index(b"\n") + 1
    data[min(start + at, len(data) - 1)] ^= 0x15
    path.write_bytes(data)
    found = rows_in(path)
    assert found == sorted(found)
    assert len(found) >= 4


def test_a_pass_whose_first_line_is_lost_still_has_the_last_word(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal.open(path, JOB)
    for row in (1, 2, 3):
        journal.finish(entry(row, ok=row != 2))
    journal.begin_pass(window=2)
    journal.finish(entry(2, said="again"))
    journal.close()
    damaged(path, b'"pass"')
    journal = Journal.open(path, JOB)
    assert [(each.row, each.ok) for each in final_entries(path, journal.segments)] == [(1, True), (2, True), (3, True)]
    journal.close()


def test_a_journal_of_an_older_version_is_read_and_the_content_of_rows_is_kept_from_now_on(tmp_path: Path) -> None:
    path = begun(tmp_path / "j", [1, 2])
    assert b'"of"' not in path.read_bytes()
    journal = Journal.open(path, JOB)
    journal.finish(JournalEntry(3, "k3", True, b'{"row":3,"key":"k3","value":"\\":\\""}', "0123456789abcdef"))
    assert [each.content for each in final_entries(path, journal.segments)] == ["", "", "0123456789abcdef"]
    journal.close()
    assert rows_in(damaged(path, b"0123456789abcdef")) == [1, 2]


def test_a_later_pass_has_the_last_word(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal.open(path, JOB)
    for row in (2, 1, 3, 5, 4):
        journal.finish(entry(row, ok=row % 2 == 0))
    journal.begin_pass(window=2)
    for row in (3, 1):
        journal.finish(entry(row, ok=row == 3, said="again"))
    journal.close()
    journal = Journal.open(path, JOB)
    assert [(each.row, each.ok) for each in final_entries(path, journal.segments)] == [
        (1, False),
        (2, True),
        (3, True),
        (4, True),
        (5, False),
    ]
    journal.begin_pass(window=2)
    journal.finish(entry(1, said="third"))
    final = list(final_entries(path, journal.segments))
    assert [each.ok for each in final] == [True, True, True, True, False]
    assert b"third" in final[0].line
    journal.close()


@pytest.mark.parametrize("seed", range(5))
def test_rows_out_of_order_by_less_than_the_window_come_back_in_order(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    rows = sorted(draw.sample(range(1, 2000), 500))
    window, written, under_way = RowWindow(20), list[int](), dict[int, int]()
    for row in rows:
        while window.full or (under_way and draw.random() < 0.4):
            place = min(under_way) if window.full else draw.choice(list(under_way))
            written.append(under_way.pop(place))
            window.end(place)
        under_way[window.begin()] = row
    written += reversed(under_way.values())
    assert written != rows
    journal = Journal.open(tmp_path / "j", JOB)
    journal.begin_pass(20)
    for row in written:
        journal.finish(entry(row))
    assert [each.row for each in final_entries(journal.path, journal.segments)] == rows
    journal.close()


def test_another_job_is_refused_and_what_differs_is_named(tmp_path: Path) -> None:
    path = begun(tmp_path / "j", [1])
    with pytest.raises(ConfigError, match="another job: its model and its prompt differed"):
        Journal.open(path, {**JOB, "model": "other", "prompt": "q"})
    Journal.open(path, {**JOB, "input": "moved.jsonl"}).close()
    assert rows_in(path) == [1]


def test_a_file_of_the_users_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text("my notes\n")
    with pytest.raises(ConfigError, match="not a journal"):
        Journal.open(path, JOB)
    assert path.read_text() == "my notes\n"


def test_two_writers_at_once_are_refused(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j", JOB)
    with pytest.raises(ConfigError, match="Another batch is writing"):
        Journal.open(tmp_path / "j", JOB)
    journal.close()
    Journal.open(tmp_path / "j", JOB).close()


def test_half_a_character_in_a_value_survives(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j", JOB)
    line = b'{"row":1,"key":"k","value":"\\ud800 123456789012345678901234567890"}'
    journal.finish(JournalEntry(1, "k", True, line))
    assert [each.line for each in final_entries(journal.path, journal.segments)] == [line]
    journal.close()


def test_rows_far_ahead_of_a_slow_one_are_read_back_in_order(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j", JOB)
    for row in (*range(2, 3_001), 1):
        journal.finish(entry(row))
    assert [each.row for each in final_entries(journal.path, journal.segments)] == list(range(1, 3_001))
    journal.close()
