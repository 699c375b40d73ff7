"""A trainer's replica group, with recovery in place: its part of the layout, its random numbers, and who writes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atoll.datacenter.errors import DatacenterError, LayoutError
from atoll.datacenter.mesh import ParallelDims, seed_ranks

if TYPE_CHECKING:
    import torch

    from atoll.datacenter.checkpoint import TrainingState
    from atoll.datacenter.data import Batch, Loader
    from atoll.datacenter.elastic.replicas.attendance import Attendance
    from atoll.datacenter.elastic.replicas.member import Member
    from atoll.datacenter.elastic.watch import Watch
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import Meshes
    from atoll.datacenter.metrics import Sinks

log = logging.getLogger(__name__)


@dataclass
class ReplicaGroup:
    """One rank's replica group.

    Attributes:
        member: this rank's connection with the launcher and the other groups.
        seed: the job's.
        meshes: device meshes of the group.
        open_sinks: opens the sinks of records.
    """

    member: Member
    seed: int
    meshes: Meshes
    open_sinks: Callable[[], Sinks]
    _writes: bool = False
    _began: bool = False

    @property
    def resumes(self) -> bool:
        """Whether this group continues from the last checkpoint, without a live group's state."""
        return self.member.resumes

    @property
    def leads(self) -> bool:
        """Whether this group writes records and checkpoints of the step just finished."""
        return self.member.leads

    def enter(self, state: TrainingState) -> None:
        """Take part from the next step on; see ``Member.enter``.

        Random generators are seeded again, by step and group: a group with a peer's state must not draw the peer's
        numbers.
        """
        self.member.enter(state)
        seed_ranks(self.seed, self.meshes, state.step * self.member.groups + self.member.group)

    def after_step(self, state: TrainingState) -> None:
        """Send the state to groups that come back after this step."""
        self.member.after_step(state)

    def take_attendance(self) -> Attendance | None:
        """Return who was in the steps since the last call."""
        return self.member.take_attendance()

    def lead_sinks(self, sinks: Sinks) -> None:
        """Open the sinks when this group begins to lead, and close them when it no longer does.

        Raises:
            DatacenterError: if they cannot be opened when the job begins. Later that is a warning: another leader may
                still hold a port, and training continues without records.
        """
        if self.leads and not self._writes:
            try:
                sinks.take_over(self.open_sinks())
            except DatacenterError as error:
                if not self._began:
                    raise
                log.warning("this replica group leads now, without records: %s", error)
        elif self._writes and not self.leads:
            sinks.close()
        self._writes, self._began = self.leads, True


@dataclass(frozen=True)
class OtherRows:
    """Reads the micro-batches that a rank at the same place in another replica group has.

    Attributes:
        loader: this rank's batches.
        ranks: data-parallel ranks of a group.
        place: number of this rank among them.
        micro_batch: sequences of a micro-batch.
        device: device of this rank.
    """

    loader: Loader
    ranks: int
    place: int
    micro_batch: int
    device: torch.device

    def __call__(self, step: int, group: int) -> list[Batch]:
        """Return the micro-batches of a step, from 0."""
        share = self.loader.share_of(step, group * self.ranks + self.place)
        return list(share.to(self.device).micro_batches(self.micro_batch))


@dataclass(frozen=True)
class GroupPulse:
    """The pulse of a rank whose job stops with all groups: the request is sent with the mean of a step."""

    watch: Watch
    member: Member

    def enter(self, step: int, phase: str) -> None:
        """Report that this rank enters a phase of a step."""
        self.watch.enter(step, phase)

    def stops_after(self, step: int) -> bool:  # noqa: ARG002  # as ``Pulse`` has it
        """Return whether the job ends with the step just finished; pass on a signal's request."""
        if self.watch.asked:
            self.member.ask_stop()
        return self.member.stops

    def stopping(self) -> bool:
        """Return whether a signal to this rank requested a stop."""
        return self.watch.asked


def group_job(job: SiloJob, member: Member | None) -> SiloJob:
    """Return the job of this rank's world: a replica group computes its part of the global batch."""
    if member is None:
        return job
    batch = job.batch.model_copy(update={"global_batch": job.batch.global_batch // member.groups})
    return job.model_copy(update={"batch": batch})


def group_dims(job: SiloJob, whole: ParallelDims, member: Member | None) -> ParallelDims:
    """Return the degrees of this rank's world: of one replica group with recovery in place.

    Raises:
        LayoutError: if the job asks for recovery in place and its caller does not support it.
    """
    if member is not None:
        return replace(whole, dp_replicate=1)
    if job.faults.recovery == "in-place":
        raise LayoutError(
            'faults.recovery = "in-place" is for `atoll silo train`: here set "restart". In a federation a round needs '
            "one sum over all ranks; a script and other launchers cannot restart a single replica group"
        )
    return whole
