"""Load the JSON that a text contains: `load`, `Loaded`."""

from slipform.text.loads import Loaded, load

__all__ = ["Loaded", "load"]
