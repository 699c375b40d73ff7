"""The schedules: what PyTorch calls each, and what it asks of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atoll.datacenter.job.parallel import PipelineSchedule


@dataclass(frozen=True, slots=True)
class Kind:
    """One schedule.

    Attributes:
        torch_name: what ``torch.distributed.pipelining.schedules.get_schedule_class`` knows it by.
        loops: whether a rank may own several stages, dealt round and round.
        v_shaped: whether each rank owns two, dealt down and up again.
        splits_backward: whether gradients of inputs and of weights are worked out at different times.
        as_many_micro_batches_as_stages: whether it needs so many.
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
        """Whether a rank can own more than one."""
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
