"""Measure slipform beside its peers: each module runs on its own with `python -m bench.<name>` and prints one table."""
