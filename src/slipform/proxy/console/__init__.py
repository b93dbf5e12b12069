"""The console: recent calls, the pour of each answer, a playground; served by the proxy itself."""
