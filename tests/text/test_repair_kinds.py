"""The kinds of failure that models show, one probe each: right, or refused, never guessed in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipform.errors import JsonEnforcementError
from slipform.text.loads import load
from tests.text.test_repair import SchemaHint

KINDS: list[dict[str, Any]] = json.loads(
    (Path(__file__).resolve().parents[1] / "corpus" / "kinds.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("probe", KINDS, ids=[probe["kind"] for probe in KINDS])
def test_failure_kind_is_handled(probe: dict[str, Any]) -> None:
    hint = SchemaHint(probe["schema"]) if "schema" in probe else None
    if probe.get("refused"):
        with pytest.raises(JsonEnforcementError):
            load(probe["input"], hint, nan="null")
    else:
        assert load(probe["input"], hint, nan="null").value == probe["value"]


def test_every_known_kind_has_its_probe() -> None:
    assert len({probe["kind"] for probe in KINDS}) == 64
