"""What importing slipform brings along: nothing that is not needed yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import slipform

SOURCE = Path(__file__).resolve().parents[2] / "src"


def imported_after(code: str) -> set[str]:
    script = f"import sys\nsys.path.insert(0, {str(SOURCE)!r})\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_slipform_imports_next_to_nothing() -> None:
    ours = {name for name in imported_after("import slipform") if name.startswith("slipform")}
    assert ours == {"slipform"}


@pytest.mark.parametrize("code", ["from slipform import loads; loads('[1,]')", "from slipform import Client"])
def test_what_is_not_needed_is_not_imported(code: str) -> None:
    assert not imported_after(code) & {"pydantic", "rich", "typer", "yaml", "openai", "anthropic", "xllamacpp"}


def test_every_public_name_is_there() -> None:
    assert "wrap" in dir(slipform)
    for name in slipform.__all__:
        assert getattr(slipform, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'asks'"):
        _ = slipform.asks
