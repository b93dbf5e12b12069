"""The proxy."""

from slipform.server.app import App

__all__ = ["App"]
