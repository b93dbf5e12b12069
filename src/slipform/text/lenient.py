"""Lenient."""

from __future__ import annotations

from slipform.text.parser_machine import Machine


class LenientMachine(Machine):
    """Lenient."""
