"""Settings of the server: the keys of ``server.toml``, and the limits on callers."""

from pathlib import Path

DEFAULT_DATA = Path("atoll-data")
"""The default data directory."""
