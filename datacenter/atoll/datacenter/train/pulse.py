"""Who hears where a rank is, and knows when the job shall stop: ``elastic.Watch``, or nobody."""

from __future__ import annotations

from typing import Protocol


class Pulse(Protocol):
    """Hears where this rank is."""

    def enter(self, step: int, phase: str) -> None:
        """This rank is at a phase of a step."""
        ...

    def stops_after(self, step: int) -> bool:
        """Whether the job ends with this step; the same on every rank."""
        ...

    def stopping(self) -> bool:
        """Between rounds: whether somebody has asked the job to stop. Ranks may hear of it one after another."""
        ...


class Unwatched:
    """Nobody listens, and the job runs to its end."""

    def enter(self, step: int, phase: str) -> None:
        """Tell nobody."""

    def stops_after(self, step: int) -> bool:  # noqa: ARG002  # as ``Pulse`` has it
        """Never."""
        return False

    def stopping(self) -> bool:
        """Never."""
        return False
