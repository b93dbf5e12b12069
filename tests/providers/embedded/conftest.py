"""The embedded model both ways: in a worker, and in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slipform.providers.embedded import LocalProvider


@pytest.fixture(scope="session")
def inside() -> Iterator[LocalProvider]:
    """The embedded model in this process."""
    provider = LocalProvider(in_process=True)
    yield provider
    provider.close()


@pytest.fixture(params=["worker", "in-process"])
def either(request: pytest.FixtureRequest, local: LocalProvider) -> LocalProvider:
    """The same cases run through both."""
    provider: LocalProvider = local if request.param == "worker" else request.getfixturevalue("inside")
    return provider
