"""Settings of the server: what ``server.toml`` may say, and the limits that callers meet."""

from pathlib import Path

DEFAULT_DATA = Path("atoll-data")
"""The data directory of a server that is told no other."""
