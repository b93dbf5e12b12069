"""What separates a record from its neighbours: cells, sentences, rare forms of values."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import slipform
from slipform.addons.records.lines import LineTable, cells_of
from slipform.testing import FakeModel
from tests.records.test_extract import answer, client_of

Row = dict[str, Any]
_SHAPE = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "number": {"type": "integer"},
            "memo": {"type": "string"},
            "date": {"type": "string"},
            "amount": {"type": "number"},
        },
    },
}


def ledger(count: int) -> list[Row]:
    """Return the rows of a ledger, with memos of one or two words."""
    return [
        {
            "number": 1000 + number,
            "memo": ("Rent", "Rent accrual", "Freight")[number % 3],
            "date": f"2024-{number % 12 + 1:02}-{number % 28 + 1:02}",
            "amount": 1.25 + number,
        }
        for number in range(count)
    ]


def line_of(row: Row) -> str:
    return f"{row['number']}\t{row['memo']}\t{row['date']}\t{row['amount']:.2f}\n"


def read(text: str) -> list[Row]:
    cells = [line.split("\t") for line in text.splitlines() if line.count("\t") == 3]
    return [
        {"number": int(number), "memo": memo, "date": date, "amount": float(amount)}
        for number, memo, date, amount in cells
    ]


def model_that_changes_its_first_answer(change: Callable[[list[Row]], list[Row]]) -> FakeModel:
    """Return a model that reads well, but for what `change` makes of its first reading of each row."""
    shown: set[int] = set()

    def respond(request: Any) -> str:
        rows = read(request.messages[-1].text)
        changed = change([row for row in rows if row["number"] not in shown])
        right = [row for row in rows if row["number"] in shown]
        shown.update(row["number"] for row in rows)
        return answer(*changed, *right)

    return FakeModel(respond)


def test_a_part_of_a_cell_is_asked_about_again_where_values_are_whole_cells() -> None:
    rows = ledger(120)
    model = model_that_changes_its_first_answer(
        lambda rows: [{**row, "memo": "Rent"} if row["number"] == 1061 else row for row in rows]
    )
    assert slipform.extract(_SHAPE, "".join(map(line_of, rows)), client=client_of(model)) == rows


def test_a_skipped_row_whose_value_has_a_rare_form_is_asked_about() -> None:
    rows = ledger(300)
    rows[200]["amount"] = 201
    text = "".join(map(line_of, rows)).replace("\t201.00\n", "\t201\n")
    model = model_that_changes_its_first_answer(lambda rows: [row for row in rows if row["number"] != 1200])
    assert slipform.extract(_SHAPE, text, client=client_of(model)) == rows


def test_a_percentage_is_in_its_place_where_the_same_number_is_elsewhere() -> None:
    shape = {
        "type": "array",
        "items": {"type": "object", "properties": {"share": {"type": "number"}, "price": {"type": "integer"}}},
    }
    rows = [{"share": 20.0 + number % 50, "price": 20 + number % 60} for number in range(60)]
    text = "".join(f"A share of {row['share']}% was sold for {row['price']} euros.\n" for row in rows)
    extraction = slipform.extract_full(shape, text, client=client_of(FakeModel([answer(*rows)])))
    assert extraction.value == rows
    assert extraction.complete


def test_a_line_that_names_what_the_records_below_it_share_is_not_a_gap() -> None:
    names = ("Ms Ito A.", "Dr Haddad B.", "Mr Mensah C.", "Ms Novak D.")
    gifts = ("bottle of wine", "fountain pen", "scarf")
    rows = [
        {"official": name, "item": item, "value": 10 + number}
        for name in names
        for number, item in enumerate(gifts * 4)
    ]
    text = "".join(
        f"\nGifts received by {name}:\n"
        + "".join(f"  - {row['item']} worth USD {row['value']}\n" for row in rows if row["official"] == name)
        for name in names
    )
    properties = {"official": {"type": "string"}, "item": {"type": "string"}, "value": {"type": "integer"}}
    shape = {"type": "array", "items": {"type": "object", "properties": properties}}
    extraction = slipform.extract_full(shape, text, client=client_of(FakeModel([answer(*rows)])))
    assert extraction.value == rows
    assert extraction.coverage.gaps == ()


def test_a_wrong_digit_in_a_cell_of_several_lines_is_asked_about_again() -> None:
    shape = {
        "type": "array",
        "items": {"type": "object", "properties": {"text": {"type": "string"}, "count": {"type": "integer"}}},
    }
    rows: list[Row] = [
        {"text": f"Hinge of type {number * 7} for {number} doors", "count": 500 + number} for number in range(60)
    ]
    text = "".join(
        f"| Hinge of type {row['text'].split()[3]:<6}| {row['count']} pieces |\n"
        f"| {' '.join(row['text'].split()[4:]):<20}| {'':10} |\n+---\n"
        for row in rows
    )
    wrong = {**rows[30], "text": rows[30]["text"].replace("210", "219")}
    answers = [answer(*rows[:30], wrong, *rows[31:]), answer(rows[30])]
    extraction = slipform.extract_full(shape, text, client=client_of(FakeModel(answers)))
    assert extraction.value == rows
    assert extraction.complete


def test_wrapped_prose_is_split_into_sentences_and_a_list_into_lines() -> None:
    sentence = "On the day the court was shown the letter that the defendant had sent to the bank."
    paragraphs = [textwrap.fill(f"{number}. {sentence} {sentence}", 60) for number in range(1, 6)]
    lines = LineTable("\n\n".join(paragraphs)).lines
    assert [line.text.split()[-1] for line in lines if not line.is_blank] == ["bank."] * 10
    assert len(LineTable("Ada King\nGrace Hopper\nAlan Turing\n\n" * 5)) == 20


def test_a_line_break_in_a_sentence_is_not_the_end_of_a_cell() -> None:
    assert cells_of("The sum was paid\n    to the bank") == ["The sum was paid to the bank"]
