"""Tensor and sequence parallelism: translate the cuts that a spec names into PyTorch's parallel styles.

Column then row (Shoeybi et al. 2019, section 3): one all-reduce for each pair of matrices. With ``sequence`` the
all-reduce becomes a reduce-scatter and an all-gather around the norms (Korthikanti et al. 2022, section 4.2.2).

A cut also cuts a layer's adapter. In ``W x + B A x``, a column cut divides the rows of W and B and leaves A whole; a
row cut divides the columns of W and A and leaves B whole. In both cases the only extra communication is the ``rank``
numbers of each token between A and B.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol, cast

from torch import nn
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from atoll.datacenter.models.lora import LoraLinear

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from atoll.datacenter.job.parallel import TensorParallelSection
    from atoll.datacenter.models.spec import Cut, ModelSpec

_SEQUENCE_DIM, _HEADS_DIM = 1, 2


class _TakesHiddenStates(Protocol):
    """A pipeline stage without the first modules: its input is cut along the sequence."""

    sequence_parts: int


def cut_tensors(
    module: nn.Module,
    spec: ModelSpec,
    mesh: DeviceMesh,
    section: TensorParallelSection,
    *,
    but: Collection[str] = (),
) -> None:
    """Cut the parts of the model that this module has, in place.

    Args:
        module: a model or a stage of it, on the meta device.
        spec: names the cuts.
        mesh: device mesh of the axis ``tp``.
        section: whether activations and loss are cut as well.
        but: modules outside blocks that are cut elsewhere.
    """
    between = between_blocks(section)
    inside: dict[str, Cut] = {
        name: cut for name, cut in spec.tensor.items() if name.partition(".")[0] not in (*spec.first, *spec.last)
    }
    outside: dict[str, Cut] = {
        name: cut for name, cut in spec.tensor.items() if name not in (*inside, *but) and _has(module, name)
    }
    parallelize_module(module, mesh, _plan(outside, between, section))
    plan = _plan(inside, between, section)
    if section.sequence:
        if not any(_has(module, name) for name in spec.first):
            cast("_TakesHiddenStates", module).sequence_parts = mesh.size()
        plan |= {name: _gathered(inputs, between) for name, inputs in spec.entries.items()}
    for block in spec.blocks_of(module).values():
        parallelize_module(block, mesh, plan)
    tie(module, spec)


def between_blocks(section: TensorParallelSection) -> Placement:
    """Return the placement of hidden states over ``tp`` between blocks."""
    return Shard(_SEQUENCE_DIM) if section.sequence else Replicate()


def tie(module: nn.Module, spec: ModelSpec) -> None:
    """Tie parameters again that the spec ties, if the module has both: cutting and allocating memory separates them."""
    for kept, replaced in spec.tied:
        if _has(module, kept) and _has(module, replaced):
            owner, _, name = replaced.rpartition(".")
            setattr(module.get_submodule(owner), name, module.get_parameter(kept))


def _gathered(inputs: int, between: Placement) -> PrepareModuleInput:
    """Gather hidden states, the first input; all other inputs of a module are whole on every rank."""
    rest = (None,) * (inputs - 1)
    return PrepareModuleInput(input_layouts=(between, *rest), desired_input_layouts=(Replicate(), *rest))


def _plan(cuts: dict[str, Cut], between: Placement, section: TensorParallelSection) -> dict[str, ParallelStyle]:
    found = {name: _style(cut, between, section) for name, cut in cuts.items()}
    return {name: style for name, style in found.items() if style is not None}


def _style(cut: Cut, between: Placement, section: TensorParallelSection) -> ParallelStyle | None:
    match cut:
        case "column":
            return _ColumnCut()
        case "row":
            return _RowCut(output_layouts=between)
        case "embedding":
            return RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
        case "output":
            layout = Shard(-1) if section.loss else Replicate()
            return ColwiseParallel(input_layouts=between, output_layouts=layout, use_local_output=not section.loss)
        case "norm":
            return SequenceParallel() if section.sequence else None
        case "head_norm":  # the weight's gradient is a sum over the ranks' heads
            return SequenceParallel(sequence_dim=_HEADS_DIM, use_local_output=True)


def _has(module: nn.Module, name: str) -> bool:
    return getattr(module, name.partition(".")[0], None) is not None


class _ColumnCut(ColwiseParallel):
    """Cuts the output dim. ``distribute_module`` replicates parameters that are not placed here."""

    def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
        del name
        for own, _ in list(module.named_parameters()):
            if own != "lora_a":
                _place(module, own, device_mesh, Shard(0))


class _RowCut(RowwiseParallel):
    """Cuts the input dim."""

    def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
        super()._partition_linear_fn(name, module, device_mesh)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if isinstance(module, LoraLinear):
            _place(module, "lora_a", device_mesh, Shard(1))


def _place(module: nn.Module, name: str, mesh: DeviceMesh, placement: Placement) -> None:
    whole = module.get_parameter(name)
    placed = distribute_tensor(whole, mesh, [placement], src_data_rank=None)
    module.register_parameter(name, nn.Parameter(placed, requires_grad=whole.requires_grad))
