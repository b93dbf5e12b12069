"""From a schema to a grammar (no process here)."""
