"""``atoll`` with a server that leaks memory and open files, which the soak must detect."""

from __future__ import annotations

import os
import threading

from atoll.client.cli import main

_EVERY_S = 0.1
_BYTES = 1 << 19
_KEPT: list[bytes] = []


def leak() -> None:
    """Leak for ever, ten times a second."""
    tick = threading.Event()
    while not tick.wait(_EVERY_S):
        _KEPT.append(os.urandom(_BYTES))
        os.open(os.devnull, os.O_RDONLY)


if __name__ == "__main__":
    threading.Thread(target=leak, daemon=True).start()
    main()
