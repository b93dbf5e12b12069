"""The same job on Ray and on this machine, in a process of its own: `python ray_job.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

import ray

from slipform.config import load_settings
from slipform.runner import Summary, batch


def main(folder: Path) -> None:
    """Do the job on both engines, then what failed of it."""
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        for retry_failures in (False, True):
            for engine in ("local", "ray"):
                done = _batch(folder, engine, retry_failures)
                print(engine, done.rows, done.done, done.failed, done.usage.total)
    finally:
        ray.shutdown()


def _batch(folder: Path, engine: str, retry_failures: bool) -> Summary:
    return batch(
        folder / "in.jsonl",
        schema="ray_shapes:Person",
        out=folder / f"{engine}.jsonl",
        prompt="Who is {name}",
        concurrency=4,
        retry_failures=retry_failures,
        engine="ray" if engine == "ray" else "local",
        settings=load_settings(folder / "slipform.yaml"),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
