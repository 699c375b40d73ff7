"""The program of a silo's ranks that stop where a test asks: ``python -m held_rank JOB.toml …``.

``HOLD``, JSON: a list of rank, step, phase and fifo. When that rank reaches that step and phase, it writes its process
id into the fifo, if there is one, and stops until SIGCONT.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from unittest.mock import patch

from atoll.datacenter.elastic.rank import run_rank
from atoll.datacenter.elastic.watch import Watch
from atoll.datacenter.federation import __main__ as program


class HeldWatch(Watch):
    """Holds its rank."""

    def enter(self, step: int, phase: str) -> None:
        super().enter(step, phase)
        for *place, fifo in json.loads(os.environ["HOLD"]):
            if place == [self._world.rank, step, phase] and Path(fifo).exists():
                with Path(fifo).open("w", encoding="utf-8") as pipe:
                    pipe.write(str(os.getpid()))
                signal.sigwait({signal.SIGCONT})


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
    with patch.object(program, "Watch", HeldWatch):
        program.main(standalone_mode=False)


if __name__ == "__main__":
    run_rank(main)
