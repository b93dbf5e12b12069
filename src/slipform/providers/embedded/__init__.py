"""The embedded model."""

from slipform.providers.embedded.provider import LocalProvider

__all__ = ["LocalProvider"]
