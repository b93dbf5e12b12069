"""Serve an ASGI application over HTTP/1.1, with limits on everything a client sends and holds."""
