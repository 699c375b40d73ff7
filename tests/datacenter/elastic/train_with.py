"""``atoll silo train`` with another program of the ranks: ``python train_with.py MODULE JOB.toml …``.

``SIGNALLED``: names of signals that the command gets while it starts ranks: once the first has been started.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any
from unittest.mock import patch

import torch.distributed.elastic.multiprocessing.api as multiprocessing
from torch.distributed.elastic.multiprocessing.subprocess_handler import get_subprocess_handler

import atoll.datacenter.cli.train as command


def signal_at_start() -> None:
    """Send the signals where torch has started a rank that it does not know of yet."""

    def starting(**how: Any) -> Any:
        handler = get_subprocess_handler(**how)
        for name in os.environ.pop("SIGNALLED", "").split():
            os.kill(os.getpid(), signal.Signals[name])
        return handler

    patch.object(multiprocessing, "get_subprocess_handler", starting).start()


if __name__ == "__main__":
    signal_at_start()
    command._MODULE = sys.argv.pop(1)
    command.train()
