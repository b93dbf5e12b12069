"""Hold what is built on the core and imported by none of it."""
