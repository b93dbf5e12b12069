"""Run every benchmark, one after another, each in a process of its own: `make bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_NEEDS_A_MODEL = {"local", "local_schemas", "tasks"}
_PARTS = {
    "client_peers",
    "client_shapes",
    "compare",
    "faults_data",
    "faults_peers",
    "situations_data",
    "tasks_data",
    "tasks_peers",
}
_FOR_HOURS = {"soak"}


def main() -> int:
    """Run them all, or those that are named; gives the number that failed."""
    here = Path(__file__).parent
    names = sys.argv[1:] or sorted(
        path.stem
        for path in here.glob("*.py")
        if not path.stem.startswith("_") and path.stem not in _NEEDS_A_MODEL | _PARTS | _FOR_HOURS
    )
    failed = 0
    for name in names:
        print(f"\n=== {name} ===", flush=True)
        failed += subprocess.run([sys.executable, "-m", f"bench.{name}"], cwd=here.parent, check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
