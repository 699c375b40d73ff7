"""A rank of a parameter server's world; rank 2 tells the time of its first step by a line, and hangs until killed.

``python -m tests.datacenter.asynchrony.dying FILE RANK``
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from atoll.datacenter.errors import TrainingError
from atoll.datacenter.train.passes import MicroBatch
from tests.datacenter.asynchrony.working import Feed, served

TIMEOUT_S = 60.0


def hanging(feed: Feed) -> Feed:
    """Rank 2 stops in its second step."""

    def fed(clock: int) -> Sequence[MicroBatch]:
        if dist.get_rank() == 2 and clock == 1:
            sys.stdout.write("hangs\n")
            sys.stdout.flush()
            threading.Event().wait(TIMEOUT_S)
        return feed(clock)

    return fed


def main() -> None:
    """Run the rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{sys.argv[1]}", timedelta(seconds=TIMEOUT_S), 3, int(sys.argv[2]))
    try:
        served({"faults": {"collective_timeout_s": TIMEOUT_S}, "asynchrony": {"staleness": 1}}, hanging)
    except TrainingError as error:
        sys.stdout.write(f"{error}\n")


if __name__ == "__main__":
    main()
