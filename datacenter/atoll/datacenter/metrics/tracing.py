"""Profiler traces of chosen steps, and of the next steps on demand.

There are three ways to ask for a trace: ``metrics.profile_steps`` in the job file; the signal SIGUSR2 to a rank's
process, which traces its own next ``ON_DEMAND_STEPS`` steps; ``touch FOLDER/now``, which every rank that sees the
folder notices at its next step, so that traces of the ranks begin within a step of each other. Traces are Chrome traces
(chrome://tracing, ui.perfetto.dev); next to each is a file with its shares of communication.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Self

import torch
from torch.profiler import ProfilerActivity, profile

from atoll.datacenter.metrics.communication import communication_of

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType, TracebackType

    from atoll.datacenter.metrics.communication import Communication

log = logging.getLogger(__name__)

CONTROL_FILE = "now"
ON_DEMAND_STEPS = 3
MAX_STEPS = 50
"""Maximum steps of one trace; longer ones are divided: events are kept in memory until they are written."""
MAX_TRACES = 20
"""Maximum number of traces that one process writes; further requests are refused."""


class Tracing:
    """Decides at each step whether to trace it; use it as a context manager around the training loop.

    Args:
        folder: folder of the traces.
        rank: rank of this process; part of the file names.
        steps: first and last step to trace, in the caller's numbers; or None.
        cuda: whether to trace kernels too.
    """

    def __init__(self, folder: Path, *, rank: int, steps: tuple[int, int] | None = None, cuda: bool = False) -> None:
        self._folder = folder
        self._rank = rank
        self._steps = steps
        self._activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
        self._asked = threading.Event()
        self._seen_ns = self._touched_ns()
        self._before: signal.Handlers | int | None = None
        self._installed = False
        self._running: profile | None = None
        self._until = 0
        self._first = self._number = 0
        self._written = 0
        self._said: Communication | None = None

    def __enter__(self) -> Self:
        """Install the handler of SIGUSR2. Only the main thread can; others have only the control file."""
        if threading.current_thread() is threading.main_thread():
            previous = signal.signal(signal.SIGUSR2, self._ask)
            self._before = previous if isinstance(previous, int | signal.Handlers) else signal.SIG_DFL
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGUSR2, self._before)
            self._installed = False
        if self._running is not None:
            self._stop()

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Enclose one step of training with this number.

        Raises:
            OSError: if a trace cannot be written.
        """
        if self._running is None and (last := self._due(number)) is not None:
            self._start(number, last)
        self._number = number
        yield
        if self._running is not None and number >= self._until:
            self._stop()

    def take(self) -> Communication | None:
        """Return the communication of the last trace; None if no trace has ended since the last call."""
        said, self._said = self._said, None
        return said

    def _due(self, number: int) -> int | None:
        """Return the last step of a trace that begins with this one; None if no trace begins."""
        if self._steps is not None and self._steps[0] <= number <= self._steps[1]:
            return min(self._steps[1], number + MAX_STEPS - 1)
        touched_ns = self._touched_ns()
        wanted = self._asked.is_set() or touched_ns > self._seen_ns
        self._asked.clear()
        self._seen_ns = touched_ns
        return number + ON_DEMAND_STEPS - 1 if wanted else None

    def _start(self, number: int, last: int) -> None:
        if self._written >= MAX_TRACES:
            log.warning("step %d is not traced: this process has written %d traces already", number, MAX_TRACES)
            return
        self._first, self._until = number, last
        self._running = profile(activities=self._activities)
        self._running.start()

    def _stop(self) -> None:
        """Write the trace and its communication; waits for work queued on a GPU."""
        running, self._running = self._running, None
        if running is None:
            return
        if ProfilerActivity.CUDA in self._activities:
            torch.cuda.synchronize()
        running.stop()
        self._said = communication_of(running.events() or ())  # type: ignore[no-untyped-call]  # torch's own
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"rank{self._rank}-steps{self._first}-{self._number}"
        running.export_chrome_trace(str(self._folder / f"{name}.json.gz"))
        said = json.dumps(asdict(self._said), indent=1)
        (self._folder / f"{name}.communication.json").write_text(said + "\n", encoding="utf-8")
        self._written += 1
        log.info("traced steps %d to %d: %s", self._first, self._number, self._folder / f"{name}.json.gz")

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._asked.set()

    def _touched_ns(self) -> int:
        try:
            return (self._folder / CONTROL_FILE).stat().st_mtime_ns
        except OSError:  # there is no control file
            return 0
