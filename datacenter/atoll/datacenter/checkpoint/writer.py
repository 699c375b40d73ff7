"""Write checkpoints during training, one at a time: the state is copied, and a thread writes the copy."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save

from atoll.datacenter.checkpoint.folder import publish, writing_folder
from atoll.datacenter.checkpoint.manifest import FileRecord, Manifest, TensorRecord
from atoll.datacenter.checkpoint.storage import SafeWriter
from atoll.datacenter.errors import CheckpointError
from atoll.datacenter.torch_version import TORCH

if TYPE_CHECKING:
    from atoll.datacenter.checkpoint.state import TrainingState

STAGERS_LAST = TORCH >= (2, 13)
"""Whether a stager can copy more than one state: those of torch 2.11 and 2.12 close themselves after the first."""

log = logging.getLogger(__name__)

MAX_FAILURES = 3
"""Consecutive checkpoints that may fail before the job ends."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where checkpoints are written, and by which rank.

    Attributes:
        folder: folder of all checkpoints.
        keep: number of checkpoints to keep.
        job: name of the job.
        layout: layout of the mesh, in words.
        rank: number of this rank.
        group: gloo group of all ranks; only the writing thread uses it while a checkpoint is in progress.
    """

    folder: Path
    keep: int
    job: str
    layout: str
    rank: int
    group: dist.ProcessGroup


@dataclass(frozen=True, slots=True)
class _Flight:
    step: int
    done: Future[Any]


class Writer:
    """Writes checkpoints, one at a time. Collective.

    Memory: one copy of this rank's state in host memory, from the first checkpoint on.

    Attributes:
        last_step: step of the newest checkpoint that was begun and has not failed; None before the first.
        write_s: seconds from the beginning of the last checkpoint until it was on disk; 0 before the first.
    """

    def __init__(self, destination: Destination, clock: Callable[[], float]) -> None:
        self._destination, self._clock = destination, clock
        self._flight: _Flight | None = None
        self._failures = 0
        self._stager = _stager()
        self.last_step: int | None = None
        self.write_s = 0.0

    def begin(self, state: TrainingState) -> None:
        """Wait for the previous checkpoint, copy the state, and let a thread write it.

        Raises:
            CheckpointError: if three consecutive checkpoints could not be written.
        """
        self.settle()
        began_s = self._clock()
        if not STAGERS_LAST:
            self._stager = _stager()
        destination, writing = self._destination, writing_folder(self._destination.folder, state.step)
        tensors = state.model_tensors() | state.optimiser_tensors(make=False) | state.rank_tensors(destination.rank)
        saved = async_save(
            tensors,
            storage_writer=SafeWriter(
                writing, destination.rank, partial(self._publish, writing, state.step, state.values())
            ),
            planner=DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            process_group=destination.group,
            async_stager=self._stager,
        )
        done = saved.upload_completion if isinstance(saved, AsyncSaveResponse) else saved
        self._flight, self.last_step = _Flight(state.step, done), state.step
        done.add_done_callback(partial(self._landed, state.step, began_s))

    def settle(self, *, may_fail: bool = True) -> None:
        """Wait for the checkpoint in progress, if there is one. The outcome is the same on every rank.

        Raises:
            CheckpointError: if three consecutive checkpoints could not be written; without ``may_fail`` if this one
                could not.
        """
        if self._flight is None:
            return
        flight, self._flight = self._flight, None
        error = flight.done.exception()
        if error is None:
            self._failures = 0
            return
        self._failures += 1
        self.last_step = None
        if not may_fail or self._failures >= MAX_FAILURES:
            raise CheckpointError(
                f"the checkpoint of step {flight.step} cannot be written ({self._failures} in a row): {reason(error)}"
            ) from error

    def close(self) -> None:
        """Wait for the checkpoint in progress; raises like ``settle(may_fail=False)``."""
        self.settle(may_fail=False)
        self._stager.close()

    def _publish(
        self,
        writing: Path,
        step: int,
        values: dict[str, dict[str, int | float | str]],
        files: dict[str, FileRecord],
        tensors: dict[str, TensorRecord],
    ) -> None:
        manifest = Manifest(
            step=step,
            job=self._destination.job,
            layout=self._destination.layout,
            world=dist.get_world_size(self._destination.group),
            torch=torch.__version__,
            values=values,
            files=files,
            tensors=tensors,
        )
        publish(self._destination.folder, writing, manifest, self._destination.keep)

    def _landed(self, step: int, began_s: float, done: Future[Any]) -> None:
        """Record the time, in the writing thread, and log an error at once."""
        self.write_s = self._clock() - began_s
        if (error := done.exception()) is not None:
            log.error("the checkpoint of step %d cannot be written: %s", step, reason(error))


def reason(error: BaseException) -> str:
    """Describe an error, by rank if the distributed checkpoint knows it, without tracebacks."""
    if not isinstance(error, CheckpointException):
        return f"{type(error).__name__}: {error}"
    return "; ".join(
        f"rank {rank}: {type(cause).__name__}: {cause}" for rank, (cause, _) in sorted(error.failures.items())
    )


def _stager() -> DefaultStager:
    """Return torch's stager; with a GPU it uses pinned memory and copies while the GPU computes."""
    pinned = torch.cuda.is_available()
    return DefaultStager(StagingOptions(pinned, False, False, pinned))
