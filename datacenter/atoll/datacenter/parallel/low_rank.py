"""Column and row cuts that also cut a layer's adapter.

In ``W x + B A x``, a column cut divides the rows of W and B and leaves A whole; a row cut divides the columns of W and
A and leaves B whole. In both cases the only extra communication is the ``rank`` numbers of each token between A and B.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from atoll.datacenter.models.lora import LoraLinear


class ColumnCut(ColwiseParallel):
    """Cuts the output dim. ``distribute_module`` replicates parameters that are not placed here."""

    def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
        del name
        for own, _ in list(module.named_parameters()):
            if own != "lora_a":
                _place(module, own, device_mesh, Shard(0))


class RowCut(RowwiseParallel):
    """Cuts the input dim."""

    def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
        super()._partition_linear_fn(name, module, device_mesh)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if isinstance(module, LoraLinear):
            _place(module, "lora_a", device_mesh, Shard(1))


def _place(module: nn.Module, name: str, mesh: DeviceMesh, placement: Placement) -> None:
    whole = module.get_parameter(name)
    placed = distribute_tensor(whole, mesh, [placement], src_data_rank=None)
    module.register_parameter(name, nn.Parameter(placed, requires_grad=whole.requires_grad))
