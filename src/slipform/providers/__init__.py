"""Who answers."""

from slipform.providers.base import Provider

__all__ = ["Provider"]
