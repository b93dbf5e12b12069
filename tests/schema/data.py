"""Where the shared data is, when it is there."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).resolve().parents[2] / ".." / "shared"
_INSTALLED_SUITE = Path(sys.prefix, "json-schema", "json")
SUITE = _INSTALLED_SUITE if _INSTALLED_SUITE.is_dir() else SHARED / "json-schema-test-suite"
"""The official test suite: `make test` gets it from the source distribution of `jsonschema`."""
REAL_WORLD = SHARED / "schemas" / "real_world.jsonl"

_DRAFTS = frozenset({"draft3", "draft4", "draft6", "draft7", "draft2019-09", "draft2020-12", "v1"})

needs_suite = pytest.mark.skipif(not SUITE.is_dir(), reason="no official suite: `make .venv/.installed-suite`")
needs_real_world = pytest.mark.skipif(not REAL_WORLD.is_file(), reason="the real-world schemas are not at ../shared")


def suite_cases(draft: str) -> Iterator[tuple[str, Any, Any, bool]]:
    """Name, schema, value and verdict of each required case."""
    for path in sorted((SUITE / "tests" / draft).glob("*.json")):
        for group in json.loads(path.read_text("utf-8")):
            for case in group["tests"]:
                name = f"{path.stem}: {group['description']}: {case['description']}"
                yield name, group["schema"], case["data"], case["valid"]


def remotes(draft: str) -> dict[str, Any]:
    """The suite's other documents that concern a draft, by the address it gives them: those that its cases reach."""
    root = SUITE / "remotes"
    texts = {
        f"http://localhost:1234/{path.relative_to(root).as_posix()}": path.read_text("utf-8")
        for path in sorted(root.rglob("*.json"))
        if path.relative_to(root).parts[0] not in _DRAFTS - {draft}
    }
    cases = "".join([path.read_text("utf-8") for path in sorted((SUITE / "tests" / draft).glob("*.json"))])
    needed = {address: text for address, text in texts.items() if address.rpartition("/")[2] in cases}
    reached = "".join(needed.values())
    more = {address: text for address, text in texts.items() if address.rpartition("/")[2] in reached}
    return {address: json.loads(text) for address, text in {**needed, **more}.items()}


def real_world() -> Iterator[dict[str, Any]]:
    """Real schemas with their labelled instances."""
    with REAL_WORLD.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)
