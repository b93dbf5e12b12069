"""One call and its answer."""
