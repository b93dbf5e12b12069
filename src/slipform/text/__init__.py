"""What the text holds."""

from slipform.text.loads import Loaded, load

__all__ = ["Loaded", "load"]
