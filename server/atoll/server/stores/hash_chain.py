"""Hash chains: each row has the digest of the preceding row, so that changes and removals are detected."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

Entry = Mapping[str, object]


def canonical(entry: Entry) -> str:
    """The canonical text of an entry: ASCII JSON, sorted keys, no spaces, shortest round-trip numbers.

    Raises:
        ValueError: for a number that is not finite.
    """
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest_of(entry: Entry) -> str:
    """SHA-256 over the canonical text, in hex."""
    return hashlib.sha256(canonical(entry).encode("ascii")).hexdigest()
