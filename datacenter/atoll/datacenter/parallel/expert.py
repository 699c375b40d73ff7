"""Expert parallelism: rows are sent to distributed experts and back (Lepikhin et al. 2020, section 3).

======================  =====================================================
axis                    effect on ``[experts, outputs, inputs]``
======================  =====================================================
ep                      experts are distributed
tp                      each expert's hidden dim is cut, column then row
efsdp, dp_replicate     as in FSDP: the model's width is sharded; replicas
======================  =====================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.models.moe import Experts, RoutedExperts, routed_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from atoll.datacenter.mesh import Meshes

_HIDDEN_DIMS = {"w1": 1, "w2": 2, "w3": 1}
"""Dim of each stacked matrix that is the expert's hidden dim; the other one is the model's width."""


def cut_experts(module: nn.Module, meshes: Meshes, between: Placement) -> None:
    """Distribute experts to ranks (``ep``) and cut each of them (``tp``), in place.

    Args:
        module: a model or a stage of it, on the meta device; other parts of it may be cut already.
        meshes: device meshes of the world.
        between: placement of hidden states over ``tp`` between blocks.

    Raises:
        LayoutError: if the mesh has an axis for experts and the model has none.
    """
    found = [routed for _, routed in routed_of(module)]
    if meshes.sparse is not None and not found:
        raise LayoutError(f"mesh.ep = {meshes.dims.ep}, but the model has no RoutedExperts: set ep = 1")
    for routed in found:
        if meshes.sparse is not None:
            group = meshes.sparse["ep"].get_group()
            routed.mixing, routed.exchange = AllToAll(group), EvenAllToAll(group)
        if meshes.dims.tp > 1:
            _cut_routing(routed, meshes.dense["tp"], between)
        _cut_matrices(routed.experts, meshes)


def width_shards(experts: Experts) -> Callable[[nn.Parameter], Shard]:
    """Return the dim along which FSDP shards each matrix: the model's width, since the other dims are cut."""
    dims = {parameter: 3 - _HIDDEN_DIMS[name] for name, parameter in experts.named_parameters()}
    return lambda parameter: Shard(dims[parameter])


@dataclass(frozen=True)
class AllToAll:
    """Sends each row to the rank of its expert, and the result back.

    Bytes sent by each rank in a layer's forward pass: ``2 * tokens * top_k * dim * bytes_per_element * (ep - 1) / ep``;
    the same number in the backward pass.

    Attributes:
        group: process group along ``ep``; rank ``r`` has the experts from ``r * experts / ep``.
    """

    group: dist.ProcessGroup

    def __call__(self, rows: Tensor, counts: Tensor, experts: Experts) -> Tensor:
        """See ``models.moe.Mixing``; collective along ``ep``, and waits until the host knows the counts."""
        ranks = self.group.size()
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        sent, received = (part.view(ranks, -1).sum(1).tolist() for part in (counts, arriving))
        here = all_to_all_single_autograd(rows, received, sent, self.group)
        groups = arriving.view(ranks, -1)
        owners = torch.arange(groups.shape[1], device=rows.device).repeat(ranks)
        order = owners.repeat_interleave(arriving, output_size=here.shape[0]).argsort(stable=True)
        mixed = experts(here.index_select(0, order), groups.sum(0))
        back = torch.zeros_like(mixed).index_copy(0, order, mixed)
        returned: Tensor = all_to_all_single_autograd(back, sent, received, self.group)
        return returned


@dataclass(frozen=True)
class EvenAllToAll:
    """Sends each slot to the rank of its expert, and the result back; the host never waits.

    Bytes sent by each rank in a layer's forward pass: those of ``AllToAll`` times the capacity factor.

    Attributes:
        group: as of ``AllToAll``.
    """

    group: dist.ProcessGroup

    def __call__(self, filled: Tensor, experts: Experts) -> Tensor:
        """See ``models.moe.Exchange``; collective along ``ep``."""
        ranks = self.group.size()
        total, slots, dim = filled.shape
        here = self._swapped(filled).view(ranks, total // ranks, slots, dim).transpose(0, 1)
        mixed: Tensor = experts(here.reshape(total // ranks, ranks * slots, dim), None)
        back = mixed.view(total // ranks, ranks, slots, dim).transpose(0, 1)
        return self._swapped(back).view(total, slots, dim)

    def _swapped(self, rows: Tensor) -> Tensor:
        received: Tensor = all_to_all_single_autograd(rows.contiguous().flatten(), None, None, self.group)
        return received


def _cut_routing(routed: RoutedExperts, mesh: DeviceMesh, between: Placement) -> None:
    """Each rank of ``tp`` routes the same tokens; its outputs, and the gradients it receives, are summands."""
    routed.copies = mesh.size()
    weight = distribute_tensor(routed.router.weight, mesh, [Replicate()])
    routed.router.weight = nn.Parameter(weight, requires_grad=routed.router.weight.requires_grad)
    routed.register_forward_pre_hook(partial(_enter, mesh))
    routed.register_forward_hook(partial(_leave, mesh, between))


def _enter(mesh: DeviceMesh, _module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
    hidden: Tensor = inputs[0]
    if not isinstance(hidden, DTensor):
        hidden = DTensor.from_local(hidden, mesh, [Replicate()], run_check=False)
    return (hidden.redistribute(mesh, [Replicate()]).to_local(grad_placements=[Partial()]),)


def _leave(mesh: DeviceMesh, between: Placement, _module: nn.Module, _inputs: tuple[Any, ...], mixed: Tensor) -> Tensor:
    whole = DTensor.from_local(mixed, mesh, [Partial()], run_check=False)
    return whole.redistribute(mesh, [between]).to_local()


def _cut_matrices(experts: Experts, meshes: Meshes) -> None:
    mesh = meshes.dense["tp"] if meshes.sparse is None else meshes.sparse["ep", "tp"]
    if meshes.dims.tp == 1:
        if meshes.sparse is None:
            return
        mesh = meshes.sparse["ep"]
    for name, parameter in list(experts.named_parameters()):
        cuts = {"ep": Shard(0), "tp": Shard(_HIDDEN_DIMS[name])}
        placements = [cuts[axis] for axis in mesh.mesh_dim_names or ()]
        cut = distribute_tensor(parameter, mesh, placements)
        setattr(experts, name, nn.Parameter(cut, requires_grad=parameter.requires_grad))
