"""Run a language model on this machine, with every answer constrained to its schema by a grammar."""

from slipform.providers.embedded.provider import LocalProvider

__all__ = ["LocalProvider"]
