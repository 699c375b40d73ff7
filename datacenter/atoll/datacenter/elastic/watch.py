"""Each rank's heartbeat: sends its position to all ranks every second, and learns of requests to stop."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
import time
import uuid
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from atoll.datacenter.elastic.blame import Beat, explain
from atoll.datacenter.elastic.ending import FOLDER_VARIABLE, end_rank, translated
from atoll.datacenter.elastic.exits import Exit
from atoll.datacenter.elastic.recorder import Recording, recording
from atoll.datacenter.errors import HungError

if TYPE_CHECKING:
    from atoll.datacenter.mesh import World

log = logging.getLogger(__name__)

BEAT_S = 1.0
"""Seconds between two beats."""
STANDSTILL_S = 2.0
"""Seconds in one phase after which a beat includes collectives: reading the recorder takes about a millisecond."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Watch:
    """This rank's heartbeat; a context manager for the main thread, once there is a process group. Collective.

    SIGTERM and SIGINT to any rank request a stop of the whole job: ``stops_after`` then returns true for the same step
    on every rank. A rank whose launcher is gone ends itself. An error of a collective becomes ``HungError`` or
    ``LostPeerError``, see ``translated``.

    On GPUs the main thread gets no such error: it waits for the device, and NCCL's own watchdog aborts the process
    without naming a rank. There, the thread of this watch ends a rank whose collective is late, with the same message.

    Args:
        world: world of the ranks.
        timeout_s: timeout of collectives.
        ends_late: whether this watch ends the rank; None: on GPUs.
    """

    def __init__(self, world: World, timeout_s: float, *, ends_late: bool | None = None) -> None:
        self._world, self._timeout_s = world, timeout_s
        self._place, self._since_s = (0, "start"), time.monotonic()
        self._number = 0
        self._asked = False
        self._left = threading.Event()
        self._beaten = threading.Condition()
        self._host, self._parent = socket.gethostname(), os.getppid()
        self._recording = Recording(None, {})
        self._ends_late = world.device.type == "cuda" if ends_late is None else ends_late
        self._store = _store(world)
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._before: list[tuple[signal.Signals, Any]] = []

    def __enter__(self) -> Self:
        self._before = [(one, signal.signal(one, self._ask)) for one in _SIGNALS]
        self._notify_launcher("running")
        self._beat()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"in step {self._place[0]} of this rank ({self._place[1]})")
        try:
            if isinstance(error, RuntimeError) and (meant := translated(error, self.explained)) is not error:
                raise meant from error
        finally:
            self._left.set()
            self._thread.join()
            for one, handler in self._before:
                signal.signal(one, handler)

    def enter(self, step: int, phase: str) -> None:
        """Set this rank's position, for errors of ranks that wait for it. Takes less than a microsecond."""
        self._place, self._since_s = (step, phase), time.monotonic()

    def stops_after(self, step: int) -> bool:
        """Return whether the job ends with this step because a stop was requested. Makes one request to the store.

        A rank with a request publishes it before it enters step n, and the job ends with step n + 1. No rank asks about
        step n + 1 before it has read the result of step n (``Trainer.run``). That step has collectives, which the
        publishing rank entered after it had published. So all ranks find the same answer.

        Args:
            step: the step just finished.
        """
        if self._asked and not self._store.check(["stop"]):
            self._store.compare_set("stop", "", str(step + 2))
        return self._store.check(["stop"]) and int(self._store.get("stop")) <= step

    @property
    def asked(self) -> bool:
        """Whether a signal to this rank requested a stop."""
        return self._asked

    def stopping(self) -> bool:
        """Return whether a stop was requested, for a rank that waits between steps.

        The call publishes the request, so that a rank that is in a step finds it afterwards. In a thread other than the
        main one the call only reads: the main thread may be in a step, and two ranks might find the request at
        different steps.
        """
        in_no_step = threading.current_thread() is threading.main_thread()
        if self._asked and in_no_step and not self._store.check(["stop"]):
            self._store.compare_set("stop", "", "0")
        return bool(self._store.check(["stop"]))

    def ended(self, outcome: str, step: int) -> None:
        """Report to the launcher how the job ended on this rank: ``finished`` or ``stopped``."""
        self._notify_launcher(outcome, step)

    def explained(self) -> str:
        """Explain which ranks keep this one waiting. Takes a few seconds, to read several of their beats."""
        try:
            mine, before = self._beat_of(), self._beats()
            beats = self._number + 3
            with self._beaten:
                self._beaten.wait_for(lambda: self._number >= beats, 4 * BEAT_S)
            return explain(mine, before, self._beats(), self._timeout_s)
        except (RuntimeError, OSError) as error:
            return (
                f"{self._place[1]} of step {self._place[0]} did not end in time, and the ranks cannot be read: {error}"
            )

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._asked = True

    def _run(self) -> None:
        while not self._left.wait(BEAT_S):
            if "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() != self._parent:
                os._exit(Exit.FAILED)
            try:
                self._beat()
            except RuntimeError as error:
                log.debug("no more beats: %s", error)
                return
            if self._ends_late and self._is_late():
                self._ends_late = False
                threading.Thread(target=self._end_late, name="hung", daemon=True).start()  # beats continue meanwhile

    def _is_late(self) -> bool:
        """Return whether this rank has been in its phase, and in one collective, for longer than allowed."""
        phase_s = time.monotonic() - self._since_s
        waiting = recording().waiting if phase_s >= self._timeout_s else None
        return waiting is not None and waiting.age_s >= self._timeout_s

    def _end_late(self) -> None:
        end_rank(HungError(self.explained()))

    def _beat(self) -> None:
        if time.monotonic() - self._since_s >= STANDSTILL_S:
            self._remember(recording())
        self._number += 1
        self._store.set(f"beat/{self._world.rank}", self._beat_of().encoded())
        with self._beaten:
            self._beaten.notify_all()

    def _remember(self, found: Recording) -> None:
        """Remember the collective that this rank waits in; it is needed after the collective has failed."""
        if found.waiting is None and self._recording.waiting is not None:
            found = Recording(self._recording.waiting, found.begun)
        self._recording = found

    def _beat_of(self) -> Beat:
        (step, phase), phase_s = self._place, time.monotonic() - self._since_s
        found = self._recording if phase_s >= STANDSTILL_S else Recording(None, {})
        return Beat(
            self._world.rank,
            self._host,
            os.getpid(),
            self._number,
            step,
            phase,
            phase_s,
            found.waiting,
            dict(found.begun),
        )

    def _beats(self) -> list[Beat]:
        keys = [f"beat/{rank}" for rank in range(self._world.size)]
        return [Beat.decoded(self._store.get(key)) for key in keys if self._store.check([key])]

    def _notify_launcher(self, outcome: str, step: int = 0) -> None:
        if (folder := os.environ.get(FOLDER_VARIABLE)) is None:
            return
        outcome_of_rank = {"rank": self._world.rank, "pid": os.getpid(), "outcome": outcome, "step": step}
        place = Path(folder) / f"rank-{self._world.rank:05d}.json"
        written = place.with_suffix(".new")
        written.write_text(json.dumps(outcome_of_rank), encoding="utf-8")
        written.replace(place)


def _store(world: World) -> Any:
    """Connect separately, as the main thread may wait on the other connection; keys belong to this start of the job."""
    key = [uuid.uuid4().hex if world.is_first else ""]
    dist.broadcast_object_list(key, src=0, device=world.device)
    default: Any = dist.distributed_c10d._get_default_store()  # noqa: SLF001  # no public name for it
    return PrefixStore(f"watch/{key[0]}", default.clone())
