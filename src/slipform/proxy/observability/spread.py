"""How often how much was measured: Prometheus' histograms, counted without their locks."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import HistogramMetricFamily, Metric

_INFINITY = float("inf")


class Spread:
    """One series: how many values came up to each bound, and their sum. For one thread.

    >>> spread = Spread((1.0, 2.0))
    >>> for value in (0.5, 1.0, 1.5, 9.0):
    ...     spread.add(value)
    >>> spread.buckets(), spread.total
    ([('1.0', 2.0), ('2.0', 3.0), ('+Inf', 4.0)], 12.0)
    """

    __slots__ = ("_bounds", "_counts", "created", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.created = time.time()

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """How many values are not above each bound, the last bound being infinity."""
        found, so_far = [], 0
        for bound, count in zip((*self._bounds, _INFINITY), self._counts, strict=True):
            so_far += count
            found.append(("+Inf" if bound == _INFINITY else repr(bound), float(so_far)))
        return found


class Spreads:
    """A histogram with one label."""

    def __init__(
        self, name: str, documentation: str, label: str, bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._label = label
        self._bounds = bounds
        self._series: dict[str, Spread] = {}
        registry.register(self)

    def of(self, value: str) -> Spread:
        """The series of a label's value."""
        found = self._series.get(value)
        if found is None:
            found = self._series[value] = Spread(self._bounds)
        return found

    def describe(self) -> Iterator[Metric]:
        """The name, for the registry."""
        yield HistogramMetricFamily(self._name, self._documentation, labels=(self._label,))

    def collect(self) -> Iterator[Metric]:
        """The figures, for the registry."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=(self._label,))
        for value, series in self._series.items():
            family.add_metric((value,), series.buckets(), series.total)
            family.add_sample(f"{self._name}_created", {self._label: value}, series.created)
        yield family
