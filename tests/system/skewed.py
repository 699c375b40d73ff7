"""``atoll`` on a machine whose clock is wrong: ``$ATOLL_SKEW_S`` seconds ahead, and SIGUSR1 sets it back by two hours.

Only the clock that Atoll's own modules read is changed. TLS in gRPC uses the machine's true clock, as a peer's would.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from types import ModuleType

from atoll.client.cli import main

SET_BACK_S = 7200.0
READERS = ("atoll.client._clock", "atoll.server.process.server")
"""Modules that read the clock, or import those that do."""


class Skewed(ModuleType):
    """The module ``time`` of a machine whose clock is wrong."""

    def __init__(self, ahead_s: float) -> None:
        super().__init__("time")
        self.ahead_s = ahead_s
        self.__dict__.update({name: value for name, value in vars(time).items() if name != "time"})

    def time(self) -> float:
        """Epoch seconds, wrong."""
        return time.time() + self.ahead_s

    def set_back(self, *_: object) -> None:
        """Set the clock back."""
        self.ahead_s -= SET_BACK_S


def install(skewed: Skewed) -> None:
    """Make every module of Atoll use it."""
    for name in READERS:
        importlib.import_module(name)
    for name, module in list(sys.modules.items()):
        if name.startswith("atoll.") and vars(module).get("time") is time:
            vars(module)["time"] = skewed
    signal.signal(signal.SIGUSR1, skewed.set_back)


if __name__ == "__main__":
    install(Skewed(float(os.environ["ATOLL_SKEW_S"])))
    main()
