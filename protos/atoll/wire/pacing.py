"""How soon participants reconnect; both sides rely on it (docs/protocol.md)."""

LONGEST_RETRY_S = 5.0
"""Longest delay of a participant's reconnect, unless the server asks for a larger spread."""
