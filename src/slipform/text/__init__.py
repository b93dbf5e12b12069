"""What JSON the text holds: `load`, `Loaded`."""

from slipform.text.loads import Loaded, load

__all__ = ["Loaded", "load"]
