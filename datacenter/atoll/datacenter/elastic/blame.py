"""Find the ranks that keep the others waiting, from what every rank last reported. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from atoll.datacenter.elastic.recorder import Collective


@dataclass(frozen=True, slots=True)
class Beat:
    """A rank's report about itself, sent every second.

    Attributes:
        rank: number of the rank.
        host: its machine.
        pid: its process.
        number: counter; if it does not change, the rank no longer runs.
        step: current step.
        phase: current phase of the step.
        phase_s: seconds in this phase.
        waiting: if the rank is stuck in a phase, the collective that it has waited in for longest.
        begun: if the rank is stuck, the number of the last collective that it began, by group.
    """

    rank: int
    host: str
    pid: int
    number: int
    step: int
    phase: str
    phase_s: float
    waiting: Collective | None = None
    begun: dict[str, int] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """Encode for the store."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decoded(cls, encoded: bytes) -> Self:
        """Decode from the store."""
        found: dict[str, Any] = json.loads(encoded)
        waiting = found.pop("waiting")
        return cls(**found, waiting=None if waiting is None else Collective(**waiting))

    @property
    def name(self) -> str:
        """Rank, machine and process."""
        return f"rank {self.rank} ({self.host}, pid {self.pid})"

    @property
    def place(self) -> str:
        """Step and phase."""
        return f"step {self.step}, {self.phase}"


def explain(mine: Beat, before: Sequence[Beat], after: Sequence[Beat], timeout_s: float) -> str:
    """Explain why a collective did not end in time.

    Args:
        mine: beat of the waiting rank, taken while it waited.
        before: beats of every rank that has reported.
        after: the same, a few beats later.
        timeout_s: how long the rank waited.
    """
    numbers = {beat.rank: beat.number for beat in before}
    silent = [beat for beat in after if beat.rank != mine.rank and beat.number == numbers.get(beat.rank)]
    lively = [beat for beat in after if beat.rank != mine.rank and beat not in silent]
    late = [beat for beat in lively if _is_late(beat, mine)]
    what = str(mine.waiting) if mine.waiting is not None else "a collective"
    lines = [f"{mine.place}: {what} did not end within {timeout_s:g} s"]
    lines += [
        f"{beat.name} does not answer: it is stopped, or its machine is gone; last seen in {beat.place}"
        for beat in silent
    ]
    lines += [f"{beat.name} has not arrived: {beat.place} for {beat.phase_s:.0f} s" for beat in late]
    if not silent and not late:
        lines.append("every rank has arrived and answers: look at the network between them")
    return "\n  ".join(lines)


def _is_late(beat: Beat, mine: Beat) -> bool:
    """Return whether a rank is behind in steps, or in collectives of the same group."""
    if beat.step != mine.step:
        return beat.step < mine.step
    if mine.waiting is None or mine.waiting.group not in beat.begun:
        return beat.waiting is None and beat.phase != mine.phase
    return beat.begun[mine.waiting.group] < mine.waiting.sequence
