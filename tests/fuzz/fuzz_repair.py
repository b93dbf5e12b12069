"""Fuzz the finder and the repairer: whatever comes in, a value on record or a refusal comes out.

    python tests/fuzz/fuzz_repair.py -max_total_time=60

Needs `atheris`. A crash, a broken promise or a slow input stops the run and leaves the input in a file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import atheris  # type: ignore[import-untyped]

with atheris.instrument_imports(include=["slipform.text"]):
    from slipform.errors import JsonEnforcementError
    from slipform.text.loads import load
    from slipform.text.repair import repair
    from slipform.text.repair.tokens import apply_edits


def check(text: str) -> None:
    """Every promise of `load`, for one text."""
    try:
        loaded = load(text, nan="null")
    except JsonEnforcementError:
        return
    if loaded.edits and apply_edits(text, loaded.edits, loaded.start, loaded.end) != loaded.source:
        raise AssertionError("the edits do not give the repaired text")
    again = repair(loaded.source)
    if again.edits or again.value != loaded.value:
        raise AssertionError("the repair of a repaired text changes it")


def one_input(data: bytes) -> None:
    """Read the bytes as text, as if a model had sent them."""
    check(data.decode("utf-8", errors="surrogateescape"))


def main() -> None:
    """Run until told to stop."""
    with tempfile.TemporaryDirectory() as folder:
        _write_seeds(Path(folder))
        atheris.Setup([*sys.argv, "-max_len=1024", "-timeout=10", folder], one_input)
        atheris.Fuzz()


def _write_seeds(folder: Path) -> None:
    """Every text of the corpus as a file of its own; the fuzzer adds its finds beside them."""
    number = 0
    for path in (Path(__file__).resolve().parents[1] / "corpus").rglob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            number += 1
            text: str = json.loads(line)["input"]
            (folder / f"{number:04}").write_bytes(text.encode("utf-8", errors="surrogatepass"))


if __name__ == "__main__":
    main()
