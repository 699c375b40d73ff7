"""Checkpoints of a job: when to write them, and how to resume. Collective: every rank makes the same calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import torch
import torch.distributed as dist

from atoll.datacenter.checkpoint.interval import FIRST_STEPS, Costs, steps_until_next
from atoll.datacenter.checkpoint.resume import Resumed, check_shared, resume
from atoll.datacenter.checkpoint.writer import Destination, Writer
from atoll.datacenter.mesh import host_group

if TYPE_CHECKING:
    from atoll.datacenter.checkpoint.state import TrainingState
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.job.operation import CheckpointSection
    from atoll.datacenter.mesh import ParallelDims, World

GROUP_TIMEOUT_S = 3600.0
"""How long ranks wait for the slowest one to write or verify its files."""


class Checkpoints:
    """Manages a job's checkpoints; a context manager. Without ``checkpoint.folder``, every call does nothing.

    Attributes:
        costs: costs of the last checkpoint on the most expensive rank; None before the first.
        resumed: the checkpoint that the job continues from; None for a new job.
    """

    def __init__(self, section: CheckpointSection, destination: Destination | None, clock: Callable[[], float]) -> None:
        self._section, self._destination, self._clock = section, destination, clock
        self._writer = None if destination is None else Writer(destination, clock)
        self._agreeing = None if destination is None else host_group(GROUP_TIMEOUT_S)
        self.costs: Costs | None = None
        self.resumed: Resumed | None = None
        self._count_from(0)
        self._due = self._first_due(0)

    @classmethod
    def open(
        cls,
        job: SiloJob,
        folder: Path,
        world: World,
        dims: ParallelDims,
        clock: Callable[[], float] = time.monotonic,
    ) -> Self:
        """Open the checkpoints of a job. Opens two gloo process groups of all ranks.

        The writing thread uses one while the main thread agrees on the next checkpoint over the other: two threads must
        not share a group. Training's groups have a limit for a step, which is too short for a checkpoint.

        Args:
            job: the job.
            folder: folder of the job file; ``checkpoint.folder`` is relative to it.
            world: world of the ranks.
            dims: degrees of the mesh.
            clock: returns seconds.

        Raises:
            CheckpointError: if the folder cannot be written, or is not the same on every rank.
        """
        section = job.checkpoint
        if section.folder is None:
            return cls(section, None, clock)
        destination = Destination(
            folder / section.folder,
            section.keep,
            job.job.name,
            dims.describe(),
            world.rank,
            host_group(GROUP_TIMEOUT_S),
        )
        check_shared(destination)
        return cls(section, destination, clock)

    @property
    def folder(self) -> Path | None:
        """Folder of the checkpoints; None if the job has none."""
        return None if self._destination is None else self._destination.folder

    def resume(self, state: TrainingState) -> int | None:
        """Continue from the newest intact checkpoint.

        A damaged checkpoint is set aside with a warning and the previous one is used: only time is lost. If there are
        checkpoints and none is intact, this raises; it never silently starts a new job.

        Returns:
            Number of completed steps; None if there is no checkpoint.

        Raises:
            CheckpointError: if none is intact, or the newest is of another model.
            DataError: if it was made with other data.
        """
        if self._destination is None or (found := resume(self._destination, state)) is None:
            return None
        self.resumed = found
        self._count_from(found.step)
        self._due = self._first_due(found.step)
        return found.step

    def is_due(self, step: int) -> bool:
        """Return whether ``after_step`` will begin a checkpoint after this step."""
        return self._writer is not None and step >= self._due

    def after_step(self, step: int, state: TrainingState) -> None:
        """Begin a checkpoint if one is due; wait for it unless it is ``asynchronous``.

        Args:
            step: completed optimiser steps, including this one.
            state: this rank's current state.

        Raises:
            CheckpointError: if three in a row could not be written.
        """
        state.step = step
        if self._writer is None or step < self._due:
            return
        began_s = self._clock()
        step_s = (began_s - self._since_s) / max(1, step - self._since_step)
        self._writer.begin(state)
        if not self._section.asynchronous:
            self._writer.settle()
        self.costs = self._agreed(Costs(step_s, self._clock() - began_s, self._writer.write_s))
        every = self._section.every_steps
        self._due = step + (every or steps_until_next(self.costs, self._section.failure_hours))
        self._count_from(step)

    def go_on_from(self, step: int) -> None:
        """Record that the job continues after this step from a state that did not come from a checkpoint."""
        self._count_from(step)
        self._due = self._first_due(step)

    def follow(self, step: int) -> None:
        """Record a finished step whose checkpoint, if one is due, another replica group writes.

        The groups agree on when a checkpoint is due only if ``checkpoint.every_steps`` is set.
        """
        if self._writer is not None and step >= self._due:
            self._due = self._first_due(step)
            self._count_from(step)

    def save(self, step: int, state: TrainingState) -> None:
        """Write a checkpoint now and wait until it is on disk; does nothing if this step has one.

        Raises:
            CheckpointError: if it cannot be written.
        """
        state.step = step
        if self._writer is None:
            return
        if self._writer.last_step != step:
            self._writer.begin(state)
        self._writer.settle(may_fail=False)

    def close(self) -> None:
        """Wait for the checkpoint in progress.

        Raises:
            CheckpointError: if it could not be written.
        """
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()

    def _first_due(self, step: int) -> int:
        """Return the step of the first checkpoint, while costs are not known."""
        every = self._section.every_steps
        return step + FIRST_STEPS if every is None else (step // every + 1) * every

    def _count_from(self, step: int) -> None:
        """Start timing steps."""
        self._since_s, self._since_step = self._clock(), step

    def _agreed(self, mine: Costs) -> Costs:
        """Return the most expensive rank's costs, so that all ranks have the next checkpoint due at the same step."""
        costs = torch.tensor([mine.step_s, mine.stall_s, mine.write_s], dtype=torch.float64)
        dist.all_reduce(costs, dist.ReduceOp.MAX, group=self._agreeing)
        return Costs(*costs.tolist())
