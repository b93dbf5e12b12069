"""Collect evidence for answers; `slipform.evidence` has the public names."""
