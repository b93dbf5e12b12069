"""What was lost or bent on the way, said aloud."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelWarning:
    """Something the caller should know: a stable `code`, a sentence, and where it applies.

    >>> ModelWarning("schema_summary_cut", "The schema in the prompt was shortened.").code
    'schema_summary_cut'
    """

    code: str
    message: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class LossyEncode(ModelWarning):
    """A field or constraint the wire cannot carry: `path` says which, `action` what was done about it."""

    action: str = "dropped"
