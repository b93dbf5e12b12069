"""`slipform ground`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Cli


def test_each_value_is_shown_in_its_place(cli: Cli, folder: Path) -> None:
    (folder / "source.txt").write_text("Total due:\nEUR 1.234,50")
    done = cli("ground", "-", "source.txt", stdin='{"total": 1234.5, "note": null}')
    assert done.code == 0
    assert done.out == "/total: 15-23 normalised: Total due: EUR [1.234,50]\n/note: not found\n"


def test_a_value_that_is_not_there_is_exit_code_5(cli: Cli, folder: Path) -> None:
    (folder / "source.txt").write_text("Ada met Ada")
    done = cli("ground", "-", "source.txt", "--json", stdin='{"who": "Ada", "age": 36}')
    assert done.code == 5
    found = json.loads(done.out)
    assert found["/age"] == []
    assert [(span["start"], span["ambiguous"]) for span in found["/who"]] == [(0, True), (8, True)]
    assert "1 of 2 values" in done.err


def test_an_answer_that_is_not_json_is_told(cli: Cli, folder: Path) -> None:
    (folder / "source.txt").write_text("x")
    assert cli("ground", "-", "source.txt", stdin="{'a'").code == 5
