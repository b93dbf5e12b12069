"""Values of tables and lists stand in many places: those of their own row and column are the ones."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from slipform.evidence import ground

NAMES = [first + last for first in ("Al", "Be", "Co", "Da", "El", "Fi") for last in ("ra", "ton", "mir", "vek", "lou")]
HEADS = {
    "Markdown": "| name | qty | price | stock | year |\n|---|---|---|---|---|\n",
    "CSV": "name,qty,price,stock,year\n",
    "tabs": "name\tqty\tprice\tstock\tyear\n",
    "blanks": f"{'name':12}{'qty':>6}{'price':>10}{'stock':>7}{'year':>6}\n",
    "HTML": "<table><tr><th>name</th><th>qty</th><th>price</th><th>stock</th><th>year</th></tr>\n",
    "key and value": "",
    "sentences": "",
}
ROWS = {
    "Markdown": "| [name] | [qty] | [price] | [stock] | [year] |\n",
    "CSV": "[name],[qty],[price],[stock],[year]\n",
    "tabs": "[name]\t[qty]\t[price]\t[stock]\t[year]\n",
    "blanks": "[name:<12][qty:>6][price:>10][stock:>7][year:>6]\n",
    "HTML": "<tr><td>[name]</td><td>[qty]</td><td>[price]</td><td>[stock]</td><td>[year]</td></tr>\n",
    "key and value": "Name: [name]\nQty: [qty]\nPrice: [price]\nStock: [stock]\nYear: [year]\n\n",
    "sentences": "In [year] we had a stock of [stock] pieces of [name], sold [qty] at [price] each. ",
}


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("seed", range(6))
def test_each_value_is_found_in_its_own_row_and_column(kind: str, seed: int) -> None:
    chance = random.Random(seed)
    text, rows = f"Report\n\n{HEADS[kind]}", []
    for name in chance.sample(NAMES, 30):
        row: dict[str, Any] = {
            "name": name, "qty": chance.randint(1, 9), "price": chance.randint(1, 12) * 0.5,
            "stock": chance.randint(1, 9), "year": chance.randint(2020, 2023),
        }  # fmt: skip
        spans = {}
        for piece in re.split(r"(\[[^\]]+\])", ROWS[kind]):
            if piece.startswith("["):
                key, _, width = piece[1:-1].partition(":")
                spelled = f"{row[key]:.2f}" if key == "price" else str(row[key])
                padded = format(spelled, width)
                spans[key] = len(text) + padded.index(spelled), len(text) + padded.index(spelled) + len(spelled)
                piece = padded
            text += piece
        rows.append((row, spans))
    chosen = chance.sample(rows, 8)
    found = ground({"rows": [row for row, _ in chosen]}, text)
    wanted = {f"/rows/{at}/{key}": span for at, (_, spans) in enumerate(chosen) for key, span in spans.items()}
    assert {pointer: spans[0][:2] for pointer, spans in found.items()} == wanted
