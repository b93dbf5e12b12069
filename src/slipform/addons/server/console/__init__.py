"""Serve the console: recent calls, the stream of each answer, and a playground."""
