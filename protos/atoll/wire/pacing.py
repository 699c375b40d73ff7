"""The pace at which participants come back, which both sides count on (docs/protocol.md)."""

LONGEST_RETRY_S = 5.0
"""A participant tries a lost connection again after at most so long, unless the server asks for a larger spread."""
