"""Authenticate callers and limit their rates and spending."""
