"""Turn a schema and a token budget into a grammar for the engine."""
