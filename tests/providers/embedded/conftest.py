"""The embedded model both ways: in a worker, and in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from slipform.addons.local import LocalProvider
from slipform.addons.local.engine import Cancel, GenerationEvent, InferenceEngine


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


def events_of(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> list[GenerationEvent]:
    """A list that gets every event of the generations that are started from now on."""
    events: list[GenerationEvent] = []
    start = engine.start

    def watched(body: Mapping[str, Any], put: Callable[[GenerationEvent], None]) -> Cancel:
        def seen(event: GenerationEvent) -> None:
            events.append(event)
            put(event)

        return start(body, seen)

    monkeypatch.setattr(engine, "start", watched)
    return events
