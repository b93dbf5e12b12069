"""Call models: vendors over HTTP, local models, and the router between them."""

from slipform.providers.base import Provider

__all__ = ["Provider"]
