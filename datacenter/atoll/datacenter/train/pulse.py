"""Interface between a job and its watch: reports where a rank is, and learns when the job should stop."""

from __future__ import annotations

from typing import Protocol


class Pulse(Protocol):
    """Takes reports of where this rank is; ``elastic.Watch`` is one."""

    def enter(self, step: int, phase: str) -> None:
        """Report that this rank enters a phase of a step."""
        ...

    def stops_after(self, step: int) -> bool:
        """Return whether the job ends with this step; the same on every rank."""
        ...

    def stopping(self) -> bool:
        """Return, between rounds, whether a stop was requested. Ranks may learn of it at different times."""
        ...


class Unwatched:
    """No watch: the job runs to its end."""

    def enter(self, step: int, phase: str) -> None:
        """Do nothing."""

    def stops_after(self, step: int) -> bool:  # noqa: ARG002  # as ``Pulse`` has it
        """Return False."""
        return False

    def stopping(self) -> bool:
        """Return False."""
        return False
