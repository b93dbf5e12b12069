"""Align the values of labelled cases with langextract and rapidfuzz; run by `bench.grounding` in their environment."""

from __future__ import annotations

import json
import sys
from typing import Any

from langextract import data, resolver
from rapidfuzz import fuzz

LEAST = 85


def by_langextract(case: dict[str, Any], *, fuzzy: bool = True) -> dict[str, Any]:
    """Where langextract's aligner puts each value."""
    aligner = resolver.WordAligner()
    pointers = [pointer for pointer, value in case["values"].items() if value]
    groups = [[data.Extraction("value", case["values"][pointer])] for pointer in pointers]
    if not groups:
        return {}
    found: dict[str, Any] = {}
    try:
        aligned = aligner.align_extractions(groups, case["text"], enable_fuzzy_alignment=fuzzy)
    except Exception:
        return {}
    for pointer, group in zip(pointers, aligned, strict=True):
        place = group[0].char_interval
        found[pointer] = [] if place is None or place.start_pos is None else [(place.start_pos, place.end_pos)]
    return found


def by_rapidfuzz(case: dict[str, Any]) -> dict[str, Any]:
    """Where rapidfuzz's best partial match is."""
    found = {}
    for pointer, value in case["values"].items():
        match = fuzz.partial_ratio_alignment(value, case["text"], score_cutoff=LEAST) if value else None
        found[pointer] = [] if match is None else [(match.dest_start, match.dest_end)]
    return found


asked = json.load(sys.stdin)
answers = {
    "langextract, default": [by_langextract(case) for case in asked],
    "langextract, exact only": [by_langextract(case, fuzzy=False) for case in asked],
    "rapidfuzz, 85": [by_rapidfuzz(case) for case in asked],
}
json.dump(answers, sys.stdout)
