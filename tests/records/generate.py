"""Generate long documents whose records and places are known, and read them as a perfect model would."""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
_ONLY_STRINGS = {"type": "string"}


@dataclass(frozen=True)
class Document:
    """A text, its records in source order, where each begins and ends, and what a perfect model reads in a part."""

    text: str
    records: list[Row]
    spans: list[tuple[int, int]]
    item: dict[str, Any]
    read: Callable[[str], list[Row]]

    @property
    def shape(self) -> dict[str, Any]:
        """The JSON Schema of the list of records."""
        return {"type": "array", "items": self.item}


class Page:
    """Collects text and the places of records."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0
        self.records: list[Row] = []
        self.spans: list[tuple[int, int]] = []

    def write(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)

    def record(self, text: str, row: Row) -> None:
        start = self._length + len(text) - len(text.lstrip())
        self.spans.append((start, self._length + len(text.rstrip())))
        self.records.append(row)
        self.write(text)

    def add_place(self, offset: int, length: int, row: Row) -> None:
        """Add a record in the text that is written next."""
        self.spans.append((self._length + offset, self._length + offset + length))
        self.records.append(row)

    def document(self, item: dict[str, Any], read: Callable[[str], list[Row]]) -> Document:
        return Document("".join(self._parts), self.records, self.spans, item, read)


def item_schema(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


_NUMBER = {"type": "number"}
_NULLABLE = {"type": ["string", "null"]}
_SHOPS = ("Northwind Grocery", "Blue Bottle Coffee", "City Transit Authority", "Harbour Books", "Acme Utilities",
          "Greenfield Pharmacy", "Old Mill Bakery", "Summit Outdoor", "Riverside Parking")  # fmt: skip
_NOTES = ("Card payment, contactless", "Standing order", "Transfer by telephone", "Fee included in total")


def _amount(value: float) -> str:
    return f"{value:,.2f}"


def statement(count: int, seed: int = 0) -> Document:
    """A bank statement: page heads, carried-forward lines, continuation lines, 2 % exact twins."""
    chance = random.Random(seed)
    page = Page()
    balance = 4_200.0
    day = 0
    row: Row = {}
    line = ""
    for number in range(count):
        if number % 40 == 0:
            if number:
                page.write(f"    Carried forward{_amount(balance):>58}\n\f")
            page.write(f"Example Bank plc    Account 4411 7730    Page {number // 40 + 1}\n\n")
            page.write("Date        Description                         Reference     Amount\n")
            page.write("-" * 76 + "\n")
            page.write(f"    Brought forward{_amount(balance):>58}\n")
        if not row or chance.random() >= 0.02:
            day += chance.randrange(2)
            value = round(chance.uniform(-3000, 3000), 2)
            balance += value
            reference = f"RF{chance.randrange(10**8):08}" if chance.random() < 0.9 else None
            shop = f"{chance.choice(_SHOPS)} {chance.randrange(1, 400)}"
            row = {"date": _date(day), "description": shop, "reference": reference, "amount": value}
            line = f"{row['date']}  {shop:<34}  {reference or '':<10}  {_amount(value):>12}\n"
            if chance.random() < 0.2:
                line += f"            {chance.choice(_NOTES)}\n"
        page.record(line, dict(row))
    return page.document(
        item_schema(date=_ONLY_STRINGS, description=_ONLY_STRINGS, reference=_NULLABLE, amount=_NUMBER), _read_statement
    )


_STATEMENT_ROW = re.compile(r"^(\d{4}-\d\d-\d\d)  (\S.*?) {2,}(?:(RF\d{8}) {2,})?(-?[\d,]+\.\d\d)$", re.MULTILINE)


def _read_statement(text: str) -> list[Row]:
    return [
        {"date": match[1], "description": match[2], "reference": match[3], "amount": float(match[4].replace(",", ""))}
        for match in _STATEMENT_ROW.finditer(text)
    ]


def _date(day: int) -> str:
    month = day // 28
    return f"{2021 + month // 12}-{month % 12 + 1:02}-{day % 28 + 1:02}"


_EVENTS = ("HEADACHE", "NAUSEA", "UPPER RESPIRATORY TRACT INFECTION", "DIZZINESS", "INJECTION SITE REACTION", "FATIGUE",
           "ELEVATED LIVER ENZYMES NOT OTHERWISE SPECIFIED", "RASH", "BACK PAIN")  # fmt: skip
_GRADES = ("MILD", "MODERATE", "SEVERE")


def listing(count: int, seed: int = 0) -> Document:
    """An adverse-event listing: columns made of blanks, wrapped cells, a head on each page."""
    chance = random.Random(seed)
    page = Page()
    subject = 100
    for number in range(count):
        if number % 50 == 0:
            page.write(("\f" if number else "") + f"Protocol XR-201    Listing 16.2.7    Page {number // 50 + 1}\n\n")
            page.write("Subject   Event                     Start        Grade      Day\n")
        subject += chance.random() < 0.4
        event = chance.choice(_EVENTS)
        row: Row = {
            "subject": f"P-{subject:05}",
            "event": event,
            "start": _date(chance.randrange(900)),
            "grade": chance.choice(_GRADES),
            "day": chance.randrange(1, 1000),
        }
        first, *rest = textwrap.wrap(event, 24)
        line = f"{row['subject']:<10}{first:<26}{row['start']:<13}{row['grade']:<11}{row['day']:>3}\n"
        page.record(line + "".join(f"{'':<10}{each}\n" for each in rest), row)
    item = item_schema(
        subject=_ONLY_STRINGS, event=_ONLY_STRINGS, start=_ONLY_STRINGS, grade={"enum": list(_GRADES)},
        day={"type": "integer"},
    )  # fmt: skip
    return page.document(item, _read_listing)


_LISTING_ROW = re.compile(
    r"^(P-\d{5}) {2,}(\S.*?) {2,}(\d{4}-\d\d-\d\d) {2,}([A-Z]+) +(\d+)\n((?: {10}[A-Z][A-Z ]*\n?)*)", re.MULTILINE
)


def _read_listing(text: str) -> list[Row]:
    return [
        {
            "subject": match[1],
            "event": " ".join([match[2], *match[6].split()]),
            "start": match[3],
            "grade": match[4],
            "day": int(match[5]),
        }
        for match in _LISTING_ROW.finditer(text + "\n")
    ]


_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
           "November", "December")  # fmt: skip
_PARTIES = ("Meridian Holdings Ltd", "Oakfield Partners LLP", "Castor Shipping GmbH", "Delta Freight Inc",
            "Harrow & Sons", "Pinnacle Trading Co", "Sable Logistics SA", "Vantage Energy plc")  # fmt: skip
_FILLERS = (
    "The Plaintiff repeats and incorporates the allegations of the preceding paragraphs as if fully set out here.",
    "At all material times the parties were bound by the terms of the Master Agreement and its schedules.",
    "No reply to the letters before action was received, and the Plaintiff was put to further expense.",
)


def pleading(count: int, seed: int = 0) -> Document:
    """A legal pleading: numbered paragraphs of prose, a quarter of them without a record."""
    chance = random.Random(seed)
    page = Page()
    page.write("IN THE COMMERCIAL COURT\n\nPARTICULARS OF CLAIM\n\n")
    number = 0
    while len(page.records) < count:
        number += 1
        if chance.random() < 0.25:
            page.write(textwrap.fill(f"{number}. {chance.choice(_FILLERS)}", 88, subsequent_indent="    ") + "\n\n")
            continue
        payer, payee = chance.sample(_PARTIES, 2)
        value = chance.randrange(1_000, 900_000)
        invoice = f"INV-{chance.randrange(10**5):05}"
        day = f"{chance.choice(_MONTHS)} {chance.randrange(1, 29)}, {chance.randrange(2012, 2025)}"
        text = (
            f"{number}. On or about {day}, {payer} paid the sum of ${value:,} to {payee} in purported settlement of "
            f"invoice {invoice}, which had been issued in respect of services never rendered."
        )
        row = {"date": day, "payer": payer, "payee": payee, "amount": value, "invoice": invoice}
        page.record(textwrap.fill(text, 88, subsequent_indent="    ") + "\n\n", row)
    item = item_schema(
        date=_ONLY_STRINGS, payer=_ONLY_STRINGS, payee=_ONLY_STRINGS, amount={"type": "integer"}, invoice=_ONLY_STRINGS
    )
    return page.document(item, _read_pleading)


_PAYMENT = re.compile(
    r"On or about (\w+ \d+, \d{4}), (.+?) paid the sum of \$([\d,]+) to (.+?) in purported settlement of invoice "
    r"(INV-\d{5}), which had been issued in respect of services never rendered"
)


def _read_pleading(text: str) -> list[Row]:
    joined = re.sub(r"\s+", " ", text)
    return [
        {
            "date": match[1],
            "payer": match[2],
            "payee": match[4],
            "amount": int(match[3].replace(",", "")),
            "invoice": match[5],
        }
        for match in _PAYMENT.finditer(joined)
    ]


_CATEGORIES = ("Hexagon bolts", "Washers", "Threaded rods", "Anchors", "Rivets", "Set screws")
_MATERIALS = ("steel, zinc plated", "stainless A2", "stainless A4", "brass", "nylon")


def catalogue(count: int, seed: int = 0) -> Document:
    """A catalogue: records of three or four lines under category headings that the record needs."""
    chance = random.Random(seed)
    page = Page()
    category = ""
    article = 10_000
    for number in range(count):
        if number % 25 == 0:
            category = chance.choice([each for each in _CATEGORIES if each != category])
            page.write(f"## {category}\n\n")
        article += chance.randrange(1, 9)
        size = f"M{chance.choice((3, 4, 5, 6, 8, 10, 12, 16))} x {chance.choice((8, 10, 12, 16, 20, 25, 30, 40))}"
        pack = chance.choice((25, 50, 100, 200, 500))
        price = round(chance.uniform(0.5, 90), 2)
        material = chance.choice(_MATERIALS)
        row = {
            "category": category, "article": f"AR {article}", "size": size, "material": material, "pack": pack,
            "price": price,
        }  # fmt: skip
        text = f"AR {article}   {size}\n      Material: {material}\n"
        if chance.random() < 0.2:
            text += "      Suitable for outdoor use\n"
        page.record(f"{text}      Pack of {pack}, EUR {price:.2f}\n\n", row)
    item = item_schema(
        category=_ONLY_STRINGS, article=_ONLY_STRINGS, size=_ONLY_STRINGS, material=_ONLY_STRINGS,
        pack={"type": "integer"}, price=_NUMBER,
    )  # fmt: skip
    return page.document(item, _read_catalogue)


_HEADING = re.compile(r"^## (.+)$")
_ARTICLE = re.compile(r"^(AR \d+)   (M\d+ x \d+)$")
_MATERIAL = re.compile(r"^ +Material: (.+)$")
_PACK = re.compile(r"^ +Pack of (\d+), EUR ([\d.]+)$")


def _read_catalogue(text: str) -> list[Row]:
    return list(_catalogue_rows(text))


def _catalogue_rows(text: str) -> Iterator[Row]:
    category = ""
    row: Row = {}
    for line in text.splitlines():
        if match := _HEADING.match(line):
            category = match[1]
        elif match := _ARTICLE.match(line):
            row = {"category": category, "article": match[1], "size": match[2]}
        elif match := _MATERIAL.match(line):
            row["material"] = match[1]
        elif (match := _PACK.match(line)) and len(row) == 4:
            yield {**row, "pack": int(match[1]), "price": float(match[2])}
            row = {}


GENRES: dict[str, Callable[[int, int], Document]] = {
    "statement": statement,
    "listing": listing,
    "pleading": pleading,
    "catalogue": catalogue,
}
