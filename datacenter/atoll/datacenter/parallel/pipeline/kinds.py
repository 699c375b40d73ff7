"""Pipeline schedules: their names in PyTorch, and what they require of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atoll.datacenter.job.parallel import PipelineSchedule


@dataclass(frozen=True, slots=True)
class Kind:
    """One schedule.

    Attributes:
        torch_name: name for ``torch.distributed.pipelining.schedules.get_schedule_class``.
        loops: whether a rank may have several stages, assigned in turn.
        v_shaped: whether each rank has two stages, assigned down and up again.
        splits_backward: whether gradients of inputs and of weights are computed at different times.
        as_many_micro_batches_as_stages: whether it needs at least one micro-batch per stage.
        whole_rounds: whether micro-batches must fill whole rounds.
    """

    torch_name: str
    loops: bool = False
    v_shaped: bool = False
    splits_backward: bool = False
    as_many_micro_batches_as_stages: bool = False
    whole_rounds: bool = False

    @property
    def several_stages(self) -> bool:
        """Whether a rank can have more than one stage."""
        return self.loops or self.v_shaped


KINDS: Mapping[PipelineSchedule, Kind] = {
    "gpipe": Kind("GPipe"),
    "1f1b": Kind("1F1B", as_many_micro_batches_as_stages=True),
    "interleaved": Kind("Interleaved1F1B", loops=True, whole_rounds=True),
    "looped_bfs": Kind("LoopedBFS", loops=True),
    "interleaved_zero_bubble": Kind("InterleavedZeroBubble", loops=True, splits_backward=True, whole_rounds=True),
    "zbv": Kind("ZBVZeroBubble", v_shaped=True, splits_backward=True),
    "dualpipev": Kind("DualPipeV", v_shaped=True, splits_backward=True, as_many_micro_batches_as_stages=True),
}
