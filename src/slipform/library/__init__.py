"""Offer slipform to Python code: clients, streams of partial values, and wrapped SDK clients."""
