"""Fixtures of several modules of the server's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slipform.testing import FakeVendor
from tests.proxy.served import Served


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts servers, and ends what is left of them."""
    running: list[Served] = []

    def start(vendor: FakeVendor, workers: int = 1, **options: Any) -> Served:
        running.append(Served(tmp_path, vendor, workers, **options))
        return running[-1]

    yield start
    for served in running:
        served.stop()
