"""Evidence for answers: where each value stands in the source, and how sure the model was of it."""

from slipform.evidence.confidence import Confidence, answer_confidence
from slipform.evidence.grounding import Span, ground

__all__ = ["Confidence", "Span", "answer_confidence", "ground"]
