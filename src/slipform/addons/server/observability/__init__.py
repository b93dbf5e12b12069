"""Record each call of the proxy, and report it as log line, response headers and metrics."""
