"""What the docs site adds to zensical: the build, tables that scroll, doctests as code."""
