"""A silo's rank that records the cost of its exchanges: ``python -m benchmarks.silo.exchanging JOB.toml …``.

All code is the product's, plus timers and memory samples during exchanges. Each rank writes
``$EXCHANGING/rank-N.json``: its anonymous bytes before the model is created, and for each exchange its kind, begin and
end (epoch seconds), peak of anonymous bytes, the rank's processor seconds, and the server's (process
``$EXCHANGING_SERVER``) processor seconds at begin and end.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atoll.datacenter.elastic.rank import run_rank
from atoll.datacenter.federation import __main__ as program
from atoll.datacenter.federation import exchange
from benchmarks.sampling import cpu_s_of, family

SAMPLE_S = 0.01
_STATUS = Path("/proc/self/status")


def anonymous_bytes() -> int:
    """Resident memory of this process."""
    line = next(one for one in _STATUS.read_text(encoding="ascii").splitlines() if one.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


class Notes:
    """This rank's records so far; rewritten after each exchange."""

    def __init__(self) -> None:
        self._path = Path(os.environ["EXCHANGING"]) / f"rank-{os.environ['RANK']}.json"
        self._server = int(os.environ["EXCHANGING_SERVER"])
        self._notes: dict[str, Any] = {"before": anonymous_bytes(), "exchanges": []}

    @contextmanager
    def noting(self, kind: str) -> Iterator[None]:
        """A context in which memory is sampled."""
        done, peak, began = threading.Event(), [anonymous_bytes()], time.time()
        spent, server = time.process_time(), self._server_cpu_s()

        def sample() -> None:
            while not done.wait(SAMPLE_S):
                peak.append(anonymous_bytes())

        sampler = threading.Thread(target=sample, daemon=True)
        sampler.start()
        try:
            yield
        finally:
            done.set()
            sampler.join()
            note = {"kind": kind, "began": began, "ended": time.time(), "peak": max(peak)}
            note |= {"cpu": time.process_time() - spent, "server": [server, self._server_cpu_s()]}
            self._notes["exchanges"].append(note)
            self._path.write_text(json.dumps(self._notes), encoding="utf-8")

    def _server_cpu_s(self) -> float:
        return cpu_s_of(family(self._server))

    def noted(self, kind: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same work, recorded."""

        def both(*args: Any) -> Any:
            with self.noting(kind):
                return work(*args)

        return both


def main() -> None:
    """Take part, and record the exchanges."""
    notes = Notes()
    fetch, begin = exchange.Exchange._fetch, exchange.Exchange.begin  # noqa: SLF001  # what takes the time of a phase
    exchange.Exchange._fetch = notes.noted("fetch", fetch)  # type: ignore[method-assign]  # noqa: SLF001
    exchange.Exchange.begin = notes.noted("load", begin)  # type: ignore[method-assign]
    exchange._send = notes.noted("send", exchange._send)  # noqa: SLF001
    program.main(standalone_mode=False)


if __name__ == "__main__":
    run_rank(main)
