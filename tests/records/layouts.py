"""Generate further layouts: delimited rows, group labels, two tables, cut records, unspaced and scanned text."""

from __future__ import annotations

import itertools
import random
import re
import textwrap
from collections.abc import Callable, Iterator

from tests.records.generate import Document, Page, Row, item_schema, statement

_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}
_INTEGER = {"type": "integer"}
_CITIES = ("Lisbon", "Gdansk", "Porto", "Tallinn", "Graz", "Bergen", "Ghent", "Cork", "Turin", "Lyon")
_NAMES = ("Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Frances", "Niklaus", "Radia", "Tim")
_FAMILIES = ("King", "Hopper", "Moreau", "Lindgren", "Okafor", "Tanaka", "Novak", "Rossi", "Silva", "Weber")


def _person(chance: random.Random) -> str:
    return f"{chance.choice(_NAMES)} {chance.choice(_FAMILIES)}"


def delimited(count: int, seed: int = 0) -> Document:
    """A CSV file with a head."""
    chance = random.Random(seed)
    page = Page()
    page.write("id,name,city,amount\n")
    for number in range(count):
        row: Row = {
            "id": 10_000 + 7 * number,
            "name": _person(chance),
            "city": chance.choice(_CITIES),
            "amount": round(chance.uniform(1, 5000), 2),
        }
        page.record(f"{row['id']},{row['name']},{row['city']},{row['amount']:.2f}\n", row)
    return page.document(item_schema(id=_INTEGER, name=_TEXT, city=_TEXT, amount=_NUMBER), _read_delimited)


def _read_delimited(text: str) -> list[Row]:
    rows = re.findall(r"^(\d+),([^,\n]+),([^,\n]+),([\d.]+)$", text, re.MULTILINE)
    return [{"id": int(id_), "name": name, "city": city, "amount": float(value)} for id_, name, city, value in rows]


def grouped(count: int, seed: int = 0) -> Document:
    """A table in which the subject is printed only in the first of its rows."""
    chance = random.Random(seed)
    page = Page()
    page.write("Subject    Visit        Dose   Weight\n")
    subject = 400
    left = 0
    for _ in range(count):
        label = ""
        if left == 0:
            subject += 1
            left = chance.randrange(2, 7)
            label = f"S-{subject:05}"
        left -= 1
        row: Row = {
            "subject": f"S-{subject:05}",
            "visit": f"{2020 + chance.randrange(5)}-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02}",
            "dose": chance.randrange(5, 500),
            "weight": round(chance.uniform(45, 120), 1),
        }
        page.record(f"{label:<11}{row['visit']}   {row['dose']:>4}   {row['weight']:>6}\n", row)
    item = item_schema(subject=_TEXT, visit=_TEXT, dose=_INTEGER, weight=_NUMBER)
    return page.document(item, _read_grouped)


def _read_grouped(text: str) -> list[Row]:
    return list(_grouped_rows(text))


def _grouped_rows(text: str) -> Iterator[Row]:
    subject = ""
    for line in text.splitlines():
        if match := re.fullmatch(r"(S-\d{5})\s*", line):
            subject = match[1]
        elif match := re.match(r"(S-\d{5})?\s+(\d{4}-\d\d-\d\d)\s+(\d+)\s+([\d.]+)$", line):
            subject = match[1] or subject
            yield {"subject": subject, "visit": match[2], "dose": int(match[3]), "weight": float(match[4])}


def two_tables(count: int, seed: int = 0) -> Document:
    """Sales in one layout, then in another with other columns and prose between."""
    chance = random.Random(seed)
    page = Page()
    page.write("# Domestic sales\n\nOrder      Customer              Net\n")
    for number in range(count):
        if number == count // 2:
            page.write("\nThe following sales were made abroad and are listed by customer.\n\n# Exports\n\n")
        row: Row = {"order": f"A{100_000 + 3 * number}", "customer": _person(chance), "net": chance.randrange(10, 9000)}
        if number < count // 2:
            page.record(f"{row['order']:<11}{row['customer']:<20}{row['net']:>5}\n", row)
        else:
            page.record(f"* {row['customer']} bought for EUR {row['net']} (order {row['order']})\n", row)
    return page.document(item_schema(order=_TEXT, customer=_TEXT, net=_INTEGER), _read_two_tables)


def _read_two_tables(text: str) -> list[Row]:
    return list(_two_tables_rows(text))


def _two_tables_rows(text: str) -> Iterator[Row]:
    for line in text.splitlines():
        if match := re.match(r"(A\d{6}) +(\w+ \w+) +(\d+)$", line):
            yield {"order": match[1], "customer": match[2], "net": int(match[3])}
        elif match := re.match(r"\* (\w+ \w+) bought for EUR (\d+) \(order (A\d{6})\)$", line):
            yield {"order": match[3], "customer": match[1], "net": int(match[2])}


def four_layouts(count: int, seed: int = 0) -> Document:
    """Sales in a table, a list, blocks of three lines and a table in another order, most of them in the first."""
    chance = random.Random(seed)
    page = Page()
    page.write("# Domestic sales\n\nOrder      Customer              Net\n")
    parts = {int(count * 0.55): "Exports", int(count * 0.8): "Returns", int(count * 0.93): "Late bookings"}
    title = ""
    for number in range(count):
        row: Row = {"order": f"A{100_000 + 3 * number}", "customer": _person(chance), "net": chance.randrange(10, 9000)}
        if number in parts:
            title = parts[number]
            page.write(f"\n# {title}\n\n")
        if title == "Exports":
            page.record(f"* {row['customer']} bought for EUR {row['net']} (order {row['order']})\n", row)
        elif title == "Returns":
            page.record(f"Order number: {row['order']}\n  sent back by {row['customer']}\n  amount {row['net']}\n", row)
            page.write("\n")
        elif title:
            page.record(f"{row['net']} | {row['customer']} | {row['order']}\n", row)
        else:
            page.record(f"{row['order']:<11}{row['customer']:<20}{row['net']:>5}\n", row)
    return page.document(item_schema(order=_TEXT, customer=_TEXT, net=_INTEGER), _read_four_layouts)


_SALE = re.compile(
    r"^(?P<a>A\d{6}) +(?P<b>\w+ \w+) +(?P<c>\d+)$|^\* (?P<d>\w+ \w+) bought for EUR (?P<e>\d+) \(order (?P<f>A\d{6})\)$"
    r"|^Order number: (?P<g>A\d{6})\n  sent back by (?P<h>\w+ \w+)\n  amount (?P<i>\d+)$"
    r"|^(?P<j>\d+) \| (?P<k>\w+ \w+) \| (?P<l>A\d{6})$",
    re.MULTILINE,
)


def _read_four_layouts(text: str) -> list[Row]:
    rows: list[Row] = []
    for match in _SALE.finditer(text):
        order = match["a"] or match["f"] or match["g"] or match["l"]
        customer = match["b"] or match["d"] or match["h"] or match["k"]
        rows.append(
            {"order": order, "customer": customer, "net": int(match["c"] or match["e"] or match["i"] or match["j"])}
        )
    return rows


def page_breaks(lines: int, head: str) -> Callable[[], str]:
    """Return a function that returns a page break with its head after each of so many calls, else nothing."""
    calls = itertools.count(1)

    def next_break() -> str:
        page_number, rest = divmod(next(calls), lines)
        return "" if rest else f"\n\f{head.format(page_number + 1)}"

    return next_break


def cut_by_pages(count: int, seed: int = 0) -> Document:
    """Invoice lines of three lines each, which page breaks cut anywhere."""
    chance = random.Random(seed)
    page = Page()
    breaks = page_breaks(50, "Invoice 2024-0717    Example GmbH    Page {}\n\n")
    for number in range(count):
        row: Row = {
            "article": f"{chance.randrange(10**6, 10**7)}",
            "text": f"{chance.choice(_CITIES)} {chance.choice(('chair', 'table', 'lamp', 'shelf'))}",
            "quantity": chance.randrange(1, 99),
            "price": round(chance.uniform(3, 900), 2),
        }
        text = f"{number + 1:>4}  Article {row['article']}\n{breaks()}"
        text += f"      {row['text']}\n{breaks()}"
        page.record(f"{text}      {row['quantity']} pcs at {row['price']:.2f} EUR\n", row)
        page.write(breaks())
    item = item_schema(article=_TEXT, text=_TEXT, quantity=_INTEGER, price=_NUMBER)
    return page.document(item, _read_cut_by_pages)


_INVOICE_LINE = re.compile(
    r"^ *\d+  Article (\d+)\n(?:\n\f.*\n\n)?      (\S.*)\n(?:\n\f.*\n\n)?      (\d+) pcs at ([\d.]+) EUR$", re.MULTILINE
)


def _read_cut_by_pages(text: str) -> list[Row]:
    return [
        {"article": match[1], "text": match[2], "quantity": int(match[3]), "price": float(match[4])}
        for match in _INVOICE_LINE.finditer(text)
    ]


_SIGNS = "東西南北山川田村木林森石金銀水火土日月星"


def unspaced(count: int, seed: int = 0) -> Document:
    """Japanese sentences without blanks, many to a line."""
    chance = random.Random(seed)
    page = Page()
    for number in range(count):
        name = "".join(chance.sample(_SIGNS, 3))
        row: Row = {"name": name, "year": chance.randrange(1900, 2020), "code": f"K{10_000 + 7 * number}"}
        page.record(f"{row['name']}は{row['year']}年に登録番号{row['code']}として記録された。", row)
        if number % 12 == 11:
            page.write("\n")
    return page.document(item_schema(name=_TEXT, year=_INTEGER, code=_TEXT), _read_unspaced)


def _read_unspaced(text: str) -> list[Row]:
    rows = re.findall(r"(\w{3})は(\d{4})年に登録番号(K\d+)として記録された。", text)
    return [{"name": name, "year": int(year), "code": code} for name, year, code in rows]


def scanned(count: int, seed: int = 0) -> Document:
    """A bank statement with 1 % of its letters misread; the model reads through them."""
    clean = statement(count, seed)
    chance = random.Random(seed)
    signs = ["l" if sign.isalpha() and sign.islower() and chance.random() < 0.01 else sign for sign in clean.text]
    noisy = "".join(signs)
    rows = {noisy[start:end].splitlines()[0]: row for row, (start, end) in zip(clean.records, clean.spans, strict=True)}

    def read(text: str) -> list[Row]:
        return [dict(rows[line.rstrip()]) for line in text.splitlines() if line.rstrip() in rows]

    return Document(noisy, clean.records, clean.spans, clean.item, read)


def bullets(count: int, seed: int = 0) -> Document:
    """A Markdown list of people under headings of cities that do not matter."""
    chance = random.Random(seed)
    page = Page()
    page.write("# Members\n\nThe association has the following members.\n\n")
    for number in range(count):
        if number % 30 == 0:
            page.write(f"\n## {chance.choice(_CITIES)}\n\n")
        row: Row = {"name": f"{_person(chance)}-{chance.choice(_FAMILIES)}", "age": chance.randrange(18, 99)}
        page.record(f"- **{row['name']}**, {row['age']} years old\n", row)
    return page.document(item_schema(name=_TEXT, age=_INTEGER), _read_bullets)


def _read_bullets(text: str) -> list[Row]:
    rows = re.findall(r"^- \*\*(.+?)\*\*, (\d+) years old$", text, re.MULTILINE)
    return [{"name": name, "age": int(age)} for name, age in rows]


def objects(count: int, seed: int = 0) -> Document:
    """JSON Lines with nested objects and lists."""
    import json

    chance = random.Random(seed)
    page = Page()
    for number in range(count):
        row: Row = {
            "id": f"T-{5000 + number}",
            "buyer": {"name": _person(chance), "city": chance.choice(_CITIES)},
            "tags": chance.sample(("new", "paid", "urgent", "gift", "late"), 2),
            "total": round(chance.uniform(1, 900), 2),
        }
        page.record(json.dumps(row) + "\n", row)
    buyer = item_schema(name=_TEXT, city=_TEXT)
    item = item_schema(id=_TEXT, buyer=buyer, tags={"type": "array", "items": _TEXT}, total=_NUMBER)

    def read(text: str) -> list[Row]:
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    return page.document(item, read)


def labelled(count: int, seed: int = 0) -> Document:
    """Blocks of labelled lines, the last of which is optional."""
    chance = random.Random(seed)
    page = Page()
    for _ in range(count):
        row: Row = {
            "name": _person(chance),
            "phone": f"+49 {chance.randrange(100, 999)} {chance.randrange(10**6, 10**7)}",
            "city": chance.choice(_CITIES),
            "note": chance.choice([None, "prefers email", "call after 6 pm"]),
        }
        text = f"Name: {row['name']}\nPhone: {row['phone']}\nCity: {row['city']}\n"
        page.record(f"{text}Note: {row['note']}\n" if row["note"] else text, row)
        page.write("\n")
    item = item_schema(name=_TEXT, phone=_TEXT, city=_TEXT, note={"type": ["string", "null"]})
    return page.document(item, _read_labelled)


def _read_labelled(text: str) -> list[Row]:
    blocks = re.findall(r"^Name: (.+)\nPhone: (.+)\nCity: (.+)\n(?:Note: (.+)\n)?", f"{text}\n", re.MULTILINE)
    return [{"name": name, "phone": phone, "city": city, "note": note or None} for name, phone, city, note in blocks]


def logged(count: int, seed: int = 0) -> Document:
    """Lines of a log, a third of them of another kind."""
    chance = random.Random(seed)
    page = Page()
    second = 0
    while len(page.records) < count:
        second += chance.randrange(1, 30)
        moment = f"2024-05-01 {second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}"
        if chance.random() < 0.3:
            page.write(f"[{moment}] INFO heartbeat ok\n")
            continue
        row: Row = {"time": moment, "user": f"u{chance.randrange(900)}", "bytes": chance.randrange(10**6)}
        page.record(f"[{moment}] EVENT user={row['user']} bytes={row['bytes']}\n", row)
    return page.document(item_schema(time=_TEXT, user=_TEXT, bytes=_INTEGER), _read_logged)


def _read_logged(text: str) -> list[Row]:
    events = re.findall(r"^\[(.+?)\] EVENT user=(\w+) bytes=(\d+)$", text, re.MULTILINE)
    return [{"time": moment, "user": user, "bytes": int(size)} for moment, user, size in events]


def continued(count: int, seed: int = 0) -> Document:
    """A German statement with bookings of three lines, cut anywhere by pages that all begin alike."""
    chance = random.Random(seed)
    page = Page()
    head = "Sparkasse Beispiel      Auszug 3/2024      Blatt {}\n\nBuchung     Vorgang                    Betrag EUR\n"
    breaks = page_breaks(44, head)
    page.write(head.format(1))
    for _ in range(count):
        row: Row = {
            "booked": f"{chance.randrange(1, 29):02}.{chance.randrange(1, 13):02}.2024",
            "payee": f"{_person(chance)} {chance.choice(_CITIES)} {chance.randrange(1, 900)}",
            "mandate": f"M{chance.randrange(10**6):06}-{chance.randrange(100):02}",
            "amount": round(chance.uniform(-4000, 4000), 2),
        }
        amount = f"{abs(row['amount']):.2f}".replace(".", ",") + ("-" if row["amount"] < 0 else "+")
        text = f"{row['booked']}  {chance.choice(('Lastschrift', 'Gutschrift')):<24}{amount:>12}\n{breaks()}"
        page.record(f"{text}            {row['payee']}\n{breaks()}            {row['mandate']}\n", row)
        page.write(breaks())
    return page.document(item_schema(booked=_TEXT, payee=_TEXT, mandate=_TEXT, amount=_NUMBER), _read_continued)


_BOOKING = re.compile(
    r"^(\d\d\.\d\d\.\d{4})  \w+ +([\d,]+)([+-])\n(?:\n\f.*\n\n.*\n)? {12}(\S.*)\n(?:\n\f.*\n\n.*\n)? {12}(M\S+)$",
    re.MULTILINE,
)


def _read_continued(text: str) -> list[Row]:
    rows: list[Row] = []
    for booked, digits, sign, payee, mandate in _BOOKING.findall(text):
        amount = float(digits.replace(",", "."))
        amount = -amount if sign == "-" else amount
        rows.append({"booked": booked, "payee": payee, "mandate": mandate, "amount": amount})
    return rows


def underlined(count: int, seed: int = 0) -> Document:
    """A catalogue under underlined headings that look like the lines of its records, with optional lines."""
    chance = random.Random(seed)
    page = Page()
    family = ""
    for number in range(count):
        if number % 15 == 0:
            family = chance.choice([each for each in ("Clamps", "Handles", "Hinges", "Feet") if each != family])
            page.write(f"\n{family}\n{'=' * len(family)}\n\n")
        row: Row = {
            "family": family,
            "code": f"{chance.randrange(10, 99)}.{chance.randrange(1000, 9999)}-{chance.choice('KLMN')}",
            "load": chance.choice([None, chance.randrange(10, 900)]),
            "price": chance.randrange(40, 80_000) / 20,
        }
        text = f"Order-No. {row['code']}\n"
        text += f"  Load {'.' * 20} {row['load']} kg\n" if row["load"] else ""
        page.record(f"{text}  Price {'.' * 19} CHF {row['price']:.2f}\n", row)
        page.write("\n")
    item = item_schema(family=_TEXT, code=_TEXT, load={"type": ["integer", "null"]}, price=_NUMBER)
    return page.document(item, lambda text: list(_underlined_rows(text)))


def _underlined_rows(text: str) -> Iterator[Row]:
    family = ""
    before = ""
    row: Row = {}
    for line in text.splitlines():
        if line.startswith("=="):
            family = before
        elif match := re.match(r"Order-No\. (\S+)$", line):
            row = {"family": family, "code": match[1], "load": None}
        elif match := re.match(r"  Load \.+ (\d+) kg$", line):
            row["load"] = int(match[1])
        elif (match := re.match(r"  Price \.+ CHF ([\d.]+)$", line)) and row:
            yield {**row, "price": float(match[1])}
            row = {}
        before = line


def wrapped(count: int, seed: int = 0) -> Document:
    """Prose with line breaks at a width: paragraphs of up to three payments, which begin anywhere in a line."""
    chance = random.Random(seed)
    page = Page()
    paragraph = 0
    while len(page.records) < count:
        paragraph += 1
        sentences = [f"{paragraph}. The following is admitted by both parties and is not in dispute here."]
        rows: list[Row] = []
        for _ in range(chance.randrange(4)):
            row: Row = {
                "date": f"{chance.randrange(1, 29)} May {chance.randrange(1990, 2024)}",
                "payer": _person(chance),
                "amount": chance.randrange(100, 90_000),
                "exhibit": f"exhibit {chance.randrange(1, 9000)}",
            }
            rows.append(row)
            sentences.append(
                f"On {row['date']}, {row['payer']} paid to the defendant the sum of {row['amount']} euros without any "
                f"reservation, as is shown by {row['exhibit']}."
            )
        text = textwrap.fill(" ".join(sentences), 80, break_on_hyphens=False)
        at = len(sentences[0]) + 1
        for row, sentence in zip(rows, sentences[1:], strict=True):
            page.add_place(at, len(sentence), row)
            at += len(sentence) + 1
        page.write(f"{text}\n\n")
    return page.document(item_schema(date=_TEXT, payer=_TEXT, amount=_INTEGER, exhibit=_TEXT), _read_wrapped)


_PAYMENT = re.compile(
    r"On (\d+ May \d{4}), (\w+ \w+) paid to the defendant the sum of (\d+) euros without any reservation, as is shown "
    r"by (exhibit \d+)\."
)


def _read_wrapped(text: str) -> list[Row]:
    rows = _PAYMENT.findall(" ".join(text.split()))
    return [{"date": date, "payer": payer, "amount": int(sum_), "exhibit": name} for date, payer, sum_, name in rows]


LAYOUTS: dict[str, Callable[[int, int], Document]] = {
    "delimited": delimited,
    "grouped": grouped,
    "two_tables": two_tables,
    "four_layouts": four_layouts,
    "cut_by_pages": cut_by_pages,
    "unspaced": unspaced,
    "scanned": scanned,
    "bullets": bullets,
    "objects": objects,
    "labelled": labelled,
    "logged": logged,
    "continued": continued,
    "underlined": underlined,
    "wrapped": wrapped,
}
