"""Collect evidence for answers: where each value appears in the source, and how sure the model was."""

from slipform.addons.evidence.confidence import Confidence, answer_confidence
from slipform.addons.evidence.grounding import ground
from slipform.ir.evidence import Evidence, FieldEvidence, Span

__all__ = ["Confidence", "Evidence", "FieldEvidence", "Span", "answer_confidence", "ground"]
