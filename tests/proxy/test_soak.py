"""A minute of random faults: nothing leaks, and every request ends in a valid answer or says why not."""

from __future__ import annotations

import os

import pytest
from bench.soak import Plan, soak


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="reads /proc")
@pytest.mark.covers("S2-01", "S2-02", "C11", "C31")
def test_a_soak_leaks_nothing_and_ends_every_request_well() -> None:
    result = soak(Plan(seconds=float(os.environ.get("SLIPFORM_SOAK_SECONDS", "60")), streams=200, pace=0.2))
    assert result.wrong == []
    assert result.leaks() == []
    assert result.log_errors == []
    assert result.outcomes["valid"] > 100
    assert result.outcomes["left"] > 10
