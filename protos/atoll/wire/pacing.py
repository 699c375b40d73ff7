"""How soon participants reconnect and how often they ping; both sides rely on it (docs/protocol.md)."""

import math

LONGEST_RETRY_S = 5.0
"""Longest delay of a participant's reconnect, unless the server asks for a larger spread."""
PING_S = 10.0
"""Seconds without a message after which a server sends a keepalive ping, unless its operator sets another interval."""
LONGEST_PING_S = 240.0
"""The largest interval: cloud load balancers by default drop connections that are silent for 4 to 6 minutes."""
PING_ANSWER_S = 10.0
"""Seconds within which a ping must be answered; otherwise the connection is closed."""
_PARTICIPANT_SHARE = 0.9


def ping_interval_s(stated_s: float) -> float:
    """The server's interval as ``Welcome.ping_s`` states it, within bounds; ``PING_S`` if it states none."""
    if math.isnan(stated_s) or stated_s <= 0:
        return PING_S
    return min(max(stated_s, PING_S), LONGEST_PING_S)


def participant_ping_ms(server_s: float) -> int:
    """A participant's own interval in milliseconds: shorter than the server's, which sends none after hearing one."""
    return round(1000 * _PARTICIPANT_SHARE * server_s)
