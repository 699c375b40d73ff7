"""Tells systemd the state of the server: sd_notify(3), for units with ``Type=notify``."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

log = logging.getLogger(__name__)

READY = "READY=1"
STOPPING = "STOPPING=1"
_VARIABLE = "NOTIFY_SOCKET"


def notify(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send a state as one datagram to the service manager's socket; without one, do nothing.

    A path that begins with ``@`` names an abstract socket.
    """
    address = environment.get(_VARIABLE, "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except OSError as error:
            log.warning("the service manager did not get %s: %s", state, error)
