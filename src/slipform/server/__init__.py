"""The proxy."""
