"""The server's interval of keepalive pings as it was last stated, kept across restarts in ``<state>/pings.json``.

With it a participant's first connection has the right interval already. Losing the file costs one more connection.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from atoll.client._state.files import read_private, replace_file
from atoll.client.errors import UsageError
from atoll.wire.pacing import PING_S, ping_interval_s

log = logging.getLogger("atoll.client")

_FILE_NAME = "pings.json"
_KEY = "ping_s"


def kept_ping_s(state: Path) -> float:
    """The interval in seconds; the default one if none is kept, or the file is damaged."""
    path = state / _FILE_NAME
    try:
        text = read_private(path)
        return PING_S if text is None else ping_interval_s(float(json.loads(text)[_KEY]))
    except (UsageError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        log.warning("%s is not used: %s; it is rewritten when the server states its interval", path, error)
        return PING_S


def keep_ping_s(state: Path, ping_s: float) -> None:
    """Write the interval. If that fails, the session continues, and the next one starts without it."""
    try:
        replace_file(state / _FILE_NAME, json.dumps({_KEY: ping_s}), durable=False)
    except OSError as error:
        log.warning("the interval of pings is not kept for the next start: %s", error)
