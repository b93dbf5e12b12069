"""Valid answers to real-world schemas leave while they grow, in every vendor's dialect."""

from __future__ import annotations

import pytest
from bench.live_schemas import FOLDER, measure

NAME = "real_world.jsonl"


@pytest.mark.skipif(not (FOLDER / NAME).is_file(), reason="the real-world schemas are not at ../shared")
def test_most_of_an_answer_leaves_before_its_end_and_every_value_is_right() -> None:
    for dialect, figures in measure(NAME, every=5).items():
        assert figures.wrong == [], dialect
        assert figures.schemas >= 40, dialect
        assert figures.mean_share >= 0.85, dialect
        assert figures.streaming >= 0.93 * figures.schemas, dialect
