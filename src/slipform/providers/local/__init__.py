"""The embedded model: an answer with no key and no network."""

from slipform.providers.local.provider import LocalProvider

__all__ = ["LocalProvider"]
