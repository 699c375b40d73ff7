"""Hash chains: a row names the digest of the one before, so that none can be changed, moved or taken out unnoticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

Entry = Mapping[str, object]


def canonical(entry: Entry) -> str:
    """The one text of an entry: JSON in ASCII, keys sorted, no spaces, numbers as Python's shortest round trip.

    Raises:
        ValueError: for a number that is not finite.
    """
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest_of(entry: Entry) -> str:
    """SHA-256 over the canonical text, in hex."""
    return hashlib.sha256(canonical(entry).encode("ascii")).hexdigest()
