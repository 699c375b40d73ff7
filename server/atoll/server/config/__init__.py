"""Settings of the server: what ``server.toml`` may say, and the limits that callers meet."""
