"""A collective of one step: axis, kind, bytes and calls.

Bytes are those of the whole buffer, as ``machine.cost`` and NCCL's tests count them: the result of an all-gather, the
input of a reduce-scatter, what each rank holds of an all-reduce or all-to-all. The cost model computes what a rank
sends of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from atoll.datacenter.sizing.formula import Figure

Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send"]
Axis = Literal["pp", "dp_replicate", "fsdp", "efsdp", "loss", "cp", "tp", "ep"]
When = Literal["forward", "backward", "again", "gather", "scatter", "update"]
"""In a block's forward pass, its backward pass or its recomputation; FSDP's gather and scatter of a unit; update."""


@dataclass(frozen=True, slots=True)
class Message:
    """Similar collectives in one step of one rank.

    Attributes:
        axis: axis along which ranks communicate.
        kind: kind of the collective.
        when: part of the step.
        size: bytes of one whole buffer.
        count: number of calls in a step.
        what: content.
    """

    axis: Axis
    kind: Kind
    when: When
    size: Figure
    count: Figure
    what: str

    @property
    def total(self) -> Figure:
        """Bytes of all of them."""
        return (self.size * self.count).called(f"{self.what}: {self.kind} over {self.axis}", "bytes")
