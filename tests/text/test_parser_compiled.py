"""The compiled modules are the sources that the tests are about."""

from __future__ import annotations

from pathlib import Path

import slipform.text.parser

FOLDER = Path(str(slipform.text.parser.__file__)).parent


def test_no_compiled_module_is_older_than_its_source() -> None:
    """A stale one would shadow the source: build again (`pip install -e .`) or delete it (`make clean`)."""
    for compiled in (*FOLDER.glob("*.so"), *FOLDER.glob("*.pyd")):
        source = FOLDER / f"{compiled.name.split('.')[0]}.py"
        assert source.exists(), f"{compiled.name} has no source any more"
        assert compiled.stat().st_mtime >= source.stat().st_mtime, f"{compiled.name} is older than {source.name}"
