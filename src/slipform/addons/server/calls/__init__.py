"""Read one call and write its answer."""
