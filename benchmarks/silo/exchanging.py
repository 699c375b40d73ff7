"""A rank of a silo that notes what its exchanges cost: ``python -m benchmarks.silo.exchanging JOB.toml …``.

Everything is the product's; what is added takes times, and samples memory while nothing but an exchange goes on. Each
rank leaves ``$EXCHANGING/rank-N.json``: anonymous bytes before the model is made, and of each exchange its kind, when
it began and ended (epoch seconds), its peak of anonymous bytes, the processor seconds that the rank spent in it, and
those that the server (process ``$EXCHANGING_SERVER``) had spent when it began and when it ended.
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
    """What this rank has noted so far; written anew with each."""

    def __init__(self) -> None:
        self._path = Path(os.environ["EXCHANGING"]) / f"rank-{os.environ['RANK']}.json"
        self._server = int(os.environ["EXCHANGING_SERVER"])
        self._notes: dict[str, Any] = {"before": anonymous_bytes(), "exchanges": []}

    @contextmanager
    def noting(self, kind: str) -> Iterator[None]:
        """Sample while inside."""
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
        """The same work, noted."""

        def both(*args: Any) -> Any:
            with self.noting(kind):
                return work(*args)

        return both


def main() -> None:
    """Take part, noting."""
    notes = Notes()
    fetch, begin = exchange.Exchange._fetch, exchange.Exchange.begin  # noqa: SLF001  # what takes the time of a phase
    exchange.Exchange._fetch = notes.noted("fetch", fetch)  # type: ignore[method-assign]  # noqa: SLF001
    exchange.Exchange.begin = notes.noted("load", begin)  # type: ignore[method-assign]
    exchange._send = notes.noted("send", exchange._send)  # noqa: SLF001
    program.main(standalone_mode=False)


if __name__ == "__main__":
    run_rank(main)
