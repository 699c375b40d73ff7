"""Bytes of parameters, gradients and optimiser states on one rank: they do not depend on the micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from atoll.datacenter.plan.layout import MASTER_BYTES, Layout
from atoll.datacenter.plan.muon import spared_second_moments
from atoll.datacenter.plan.sharding import root_elements, sharded, unit_elements
from atoll.datacenter.plan.stages import Share
from atoll.datacenter.sizing.formula import Figure, given

if TYPE_CHECKING:
    from atoll.datacenter.mesh.dims import ParallelDims
    from atoll.datacenter.plan.layout import Method, Task

_NOTHING = Figure(0.0)


@dataclass(frozen=True, slots=True)
class States:
    """The parameters, gradients and optimiser states that a rank keeps.

    Attributes:
        elements: parameters of all its blocks and ends, gathered.
        trained: how many of them are trained.
        learning: how many trained parameters its shard has.
        spared: bytes of second moments that the optimiser does not keep.
        parameters: bytes of its shard on the device.
        gradients: bytes of the shard's gradients on the device.
        states: bytes of the optimiser's states on the device.
    """

    elements: Figure
    trained: Figure
    learning: Figure
    spared: Figure
    parameters: Figure
    gradients: Figure
    states: Figure


def states_of(task: Task, layout: Layout, share: Share) -> States:
    """Return what a rank keeps; layouts that differ in micro-batches and recomputation share the figures."""
    return _states(task, layout.dims, layout.method, share.all_blocks, (share.first, share.last))


@lru_cache(maxsize=4096)
def _states(task: Task, dims: ParallelDims, method: Method, blocks: int, ends: tuple[bool, bool]) -> States:
    layout, share = Layout(dims, method, 1, 1, "none"), Share(0, (blocks,), *ends)
    elements = _elements(task, layout, share)
    trained = _trained(task, share, elements)
    kept = sharded(task, layout, share.all_blocks, elements).called("parameters kept", "elements")
    learning = sharded(task, layout, 0, trained).called("adapters kept", "elements") if task.shape.frozen else kept
    spared = spared_second_moments(task, layout, share)
    if task.job.data_parallel.cpu_offload:
        return States(elements, trained, learning, spared, _NOTHING, _NOTHING, _NOTHING)
    master = given("bytes of a float32", MASTER_BYTES)
    states = task.state_elements * master * learning
    return States(
        elements,
        trained,
        learning,
        spared,
        (master * kept).called("parameters", "bytes"),
        (master * learning).called("gradients", "bytes"),
        (states - spared if spared.value else states).called("optimiser states", "bytes"),
    )


def _elements(task: Task, layout: Layout, share: Share) -> Figure:
    blocks = given("blocks on this rank", share.all_blocks)
    return (blocks * unit_elements(task, layout) + root_elements(task, layout, share)).called(
        "parameters on one rank", "elements"
    )


def _trained(task: Task, share: Share, elements: Figure) -> Figure:
    """Return how many of these parameters are trained."""
    if not task.shape.frozen:
        return elements
    return (share.all_blocks * task.shape.adapters).called("adapters on one rank", "elements")
