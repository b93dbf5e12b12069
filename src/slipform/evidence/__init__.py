"""Evidence for answers: where each value stands in the source."""

from slipform.evidence.grounding import Span, ground

__all__ = ["Span", "ground"]
