"""Our histograms are those of prometheus_client."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from slipform.proxy.observability.spread import Spreads

BOUNDS = (0.01, 0.5, 2.0)
VALUES = {"a": (0.0, 0.01, 0.3, 2.0, 2.5), "b": (1.0,)}


def page(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return sorted(line.partition("_created{")[0] if "_created{" in line else line for line in lines)


def test_the_page_is_the_one_that_prometheus_own_histogram_writes() -> None:
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("x_seconds", "Words.", ("api",), buckets=BOUNDS, registry=theirs)
    spreads = Spreads("x_seconds", "Words.", "api", BOUNDS, ours)
    for api, values in VALUES.items():
        for value in values:
            histogram.labels(api).observe(value)
            spreads.of(api).add(value)
    assert page(ours) == page(theirs)
    assert len(page(ours)) > 10
