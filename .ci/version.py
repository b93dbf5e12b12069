"""Check that tag, version, changelog and manifests agree, or print the changelog's section of this version.

python .ci/version.py --tag v0.2.0
python .ci/version.py --notes
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version() -> str:
    """Return the version, which stands in one place: the package itself."""
    found = re.search(r'^__version__ = "([^"]+)"$', (ROOT / "src/slipform/__init__.py").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit("src/slipform/__init__.py has no __version__")
    return found[1]


def notes(of: str) -> str:
    """Return the changelog's section of a version."""
    found = re.search(
        rf"^## {re.escape(of)}\b[^\n]*\n(.*?)(?=^## |\Z)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE | re.DOTALL
    )
    if found is None or not found[1].strip():
        raise SystemExit(f"CHANGELOG.md has no section {of}")
    return found[1].strip()


def main() -> None:
    """Do what was asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag")
    parser.add_argument("--notes", action="store_true")
    asked = parser.parse_args()
    if asked.tag and asked.tag != f"v{version()}":
        raise SystemExit(f"The tag is {asked.tag}, the version {version()}")
    if f"image: slipform:{version()}\n" not in (ROOT / "deploy/kubernetes.yaml").read_text():
        raise SystemExit(f"The image in deploy/kubernetes.yaml is not slipform:{version()}")
    text = notes(version())
    if asked.notes:
        sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
