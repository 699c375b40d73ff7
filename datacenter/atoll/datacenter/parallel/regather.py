"""Keep only a rank's part of what tensor parallelism gathers along the sequence; regather it in the backward pass.

Korthikanti et al. 2022, section 4.2.2: column-cut matrices need their whole input twice, forward and for the gradient
of their weights; in between ``1 / tp`` of it is enough. Selective and full recomputation already do this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.utils.checkpoint import CheckpointPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.distributed.device_mesh import DeviceMesh
    from torch.fx import Graph, Node

_GATHER = torch.ops._c10d_functional.all_gather_into_tensor.default  # noqa: SLF001  # its name in graphs


def regather_inputs(entries: Iterable[nn.Module], mesh: DeviceMesh, between: Placement) -> None:
    """Make modules whose first input is gathered keep only this rank's part of it, in place.

    Args:
        entries: modules that gather in a hook before their forward pass, and are not compiled.
        mesh: device mesh of ``tp``.
        between: placement of the input before it is gathered.
    """
    for entry in entries:
        inputs = _Inputs(mesh, between)
        entry.register_forward_pre_hook(inputs.before, prepend=True)
        entry.register_forward_pre_hook(inputs.gathered)
        entry.register_forward_hook(inputs.after, always_call=True)


def regather_compiled() -> None:
    """Make compiled graphs gather again in the backward pass; for all blocks of this process."""
    inductor_config.joint_custom_pre_pass = Regather()


class Regather(CustomGraphPass):
    """Marks gathers of a forward pass, and operations that join their pieces, as never kept for the backward pass."""

    def __call__(self, graph: Graph) -> None:
        """Mark them; see ``torch._functorch.partitioners``."""
        outer = _of_backward(graph)
        for node in graph.nodes:
            if node.target is _GATHER and node not in outer:
                _mark(node)

    def uuid(self) -> Any:
        """Return what identifies this pass in the compiler's caches."""
        return get_hash_for_files((__file__,))


def _of_backward(graph: Graph) -> set[Node]:
    """Return nodes that depend on gradients of outputs."""
    found: set[Node] = set()
    for node in graph.nodes:
        tangent = node.op == "placeholder" and "tangent" in str(node.target)
        if tangent or found & set(node.all_input_nodes):
            found.add(node)
    return found


def _mark(node: Node) -> None:
    """Mark a gather, the wait for it, and views and concatenations of its result."""
    node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    for user in node.users:
        if _only_moves(user):
            _mark(user)


_MOVES = ("wait_tensor", "split", "getitem", "cat", "view", "reshape", "chunk", "_to_copy")


def _only_moves(node: Node) -> bool:
    name = getattr(node.target, "__name__", str(node.target))
    return node.op == "call_function" and any(move in name for move in _MOVES)


class _Inputs:
    """One module's input between its gathering and the end of the module's forward pass."""

    def __init__(self, mesh: DeviceMesh, between: Placement) -> None:
        self._mesh, self._between = mesh, between
        self._part: DTensor | None = None
        self._hooks: saved_tensors_hooks | None = None

    def before(self, _module: nn.Module, inputs: tuple[Any, ...]) -> None:
        part = inputs[0]
        if not isinstance(part, DTensor):
            part = DTensor.from_local(part, self._mesh, [self._between], run_check=False)
        self._part = cast("DTensor", part.detach())

    def gathered(self, _module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._part is not None and torch.is_grad_enabled():
            kept = _Kept(self._part, inputs[0])
            self._hooks = saved_tensors_hooks(kept.pack, kept.unpack)
            self._hooks.__enter__()

    def after(self, _module: nn.Module, _inputs: tuple[Any, ...], _output: Any) -> None:
        hooks, self._hooks, self._part = self._hooks, None, None
        if hooks is not None:
            hooks.__exit__()


class _Again:
    """A marker for the whole input among saved tensors, with the shape of one use."""

    def __init__(self, shape: torch.Size) -> None:
        self.shape = shape


class _Kept:
    """This rank's part of an input, from which the whole is gathered once for all saved copies."""

    def __init__(self, part: DTensor, whole: Tensor) -> None:
        self._part = part
        self._place, self._elements = _place(whole), whole.numel()
        self._wanted = 0
        self._open = 0
        self._whole: Tensor | None = None

    def pack(self, tensor: Tensor) -> Tensor | _Again:
        """Keep a marker instead of the whole input."""
        if isinstance(tensor, DTensor) and self._is_whole(tensor):
            self._wanted += 1
            return _Again(tensor.shape)
        return tensor

    def _is_whole(self, tensor: DTensor) -> bool:
        """Return whether a tensor is the whole input, in any shape; a slice shares the same memory."""
        return tensor.is_contiguous() and tensor.numel() == self._elements and _place(tensor) == self._place

    def unpack(self, kept: Tensor | _Again) -> Tensor:
        """Gather at the first request, and forget after the last."""
        if not isinstance(kept, _Again):
            return kept
        if self._whole is None:
            self._whole = self._part.redistribute(placements=[Replicate()])
            self._open = self._wanted
        whole, self._open = self._whole, self._open - 1
        if not self._open:
            self._whole = None
        return whole.view(kept.shape)


def _place(tensor: Tensor) -> tuple[int, int]:
    """Return an identity of the memory of a tensor's local part, which may still be in flight."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    storage = (local.elem if isinstance(local, AsyncCollectiveTensor) else local).untyped_storage()
    return storage._cdata, storage.nbytes()  # noqa: SLF001  # identity of a storage; no public name
