"""Define the commands `serve`, `console`, `keys` and `spend`."""
