"""Extract every record of a long document, or report what is missing."""

from slipform.addons.records.api import (
    ExtractionStream,
    ExtractOptions,
    extract,
    extract_async,
    extract_estimate,
    extract_full,
    extract_full_async,
    extract_stream,
)
from slipform.addons.records.result import (
    Conflict,
    Coverage,
    Doubtful,
    Estimate,
    Extraction,
    ExtractionReport,
    Failure,
    Gap,
    Progress,
    Record,
    Rejected,
    Unread,
)

__all__ = [
    "Conflict",
    "Coverage",
    "Doubtful",
    "Estimate",
    "ExtractOptions",
    "Extraction",
    "ExtractionReport",
    "ExtractionStream",
    "Failure",
    "Gap",
    "Progress",
    "Record",
    "Rejected",
    "Unread",
    "extract",
    "extract_async",
    "extract_estimate",
    "extract_full",
    "extract_full_async",
    "extract_stream",
]
