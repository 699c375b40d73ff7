"""Count what a step does while it runs: bytes passed to collectives, and live tensor memory."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from atoll.datacenter.parallel.ring import RING, RING_BACKWARD, attend, attend_backward

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import GroupName

_KINDS = {
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "broadcast_": "broadcast",
    "send": "send",
    "recv_": "receive",
}
"""Operators of ``c10d`` and ``_c10d_functional`` by kind of collective."""
_MOVING = {"c10d", "_c10d_functional"}
_INSIDE: Mapping[Any, Callable[..., Any]] = {RING: attend, RING_BACKWARD: attend_backward}
"""Our own operators that call collectives, and what they run."""
_SHAPES_ONLY = "_propagate_tensor_meta_non_cached"
_WHOLE_IS_RESULT = {"all_gather_into_tensor"}
"""Functional collectives whose whole buffer is the result, not an argument."""


@dataclass(frozen=True, slots=True)
class Call:
    """Kind and group of similar collectives."""

    kind: str
    group: str


@dataclass
class Counts:
    """Counted values.

    Attributes:
        calls: number of collectives; those of a group of one rank do not count.
        whole_bytes: bytes of their whole buffers: the result of an all-gather, the input of a reduce-scatter.
        live_bytes: live tensor memory, of the storages seen.
        peak_bytes: maximum of it since ``forget_peak``.
    """

    calls: Counter[Call] = field(default_factory=Counter)
    whole_bytes: Counter[Call] = field(default_factory=Counter)
    live_bytes: int = 0
    peak_bytes: int = 0

    def taken(self) -> Counts:
        """Return a copy of the current values."""
        return Counts(self.calls.copy(), self.whole_bytes.copy(), self.live_bytes, self.peak_bytes)

    def forget_peak(self) -> None:
        """Restart from the memory that is live now; also resets the counts of collectives."""
        self.peak_bytes = self.live_bytes
        self.calls.clear()
        self.whole_bytes.clear()


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts every operator that runs within; works on fake tensors and on real ones.

    Attributes:
        counts: values so far.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.counts = Counts()
        self._storages: dict[int, int] = {}
        self._paused = 0

    def __enter__(self) -> Counting:
        """Start counting; also watch storages that are resized: FSDP frees gathered parameters without an operator."""
        resize = torch.UntypedStorage.resize_
        counting = self

        def seen(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            resized: torch.UntypedStorage = resize(storage, size)
            counting._sized(storage._cdata, size)  # noqa: SLF001  # identity of a storage; no public name
            return resized

        self._patches = ExitStack()
        self._patches.enter_context(patch.object(torch.UntypedStorage, "resize_", seen))
        self._patches.enter_context(patch.object(ShardingPropagator, _SHAPES_ONLY, self._unseen()))
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def _unseen(self) -> Callable[..., Any]:
        """Do not count DTensor's shape inference: it uses fake tensors of the whole size, which no rank holds."""
        propagate = getattr(ShardingPropagator, _SHAPES_ONLY)

        def unseen(*args: Any, **kwargs: Any) -> Any:
            self._paused += 1
            try:
                return propagate(*args, **kwargs)
            finally:
                self._paused -= 1

        return unseen

    def __exit__(self, *raised: Any) -> None:
        """Stop counting."""
        super().__exit__(*raised)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._patches.close()

    def watch(self, tensors: Sequence[Tensor]) -> None:
        """Count existing tensors as live too."""
        for tensor in tensors:
            self._see(tensor.to_local() if isinstance(tensor, DTensor) else tensor)

    def __torch_dispatch__(  # PyTorch's hook
        self, operator: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # called again for each operator that the DTensor runs
        if (inside := _INSIDE.get(operator)) is not None:
            with _Within(self):
                return inside(*args, **(kwargs or {}))
        result = operator(*args, **(kwargs or {}))
        if self._paused:
            return result
        namespace, _, name = operator._schema.name.partition("::")  # noqa: SLF001  # the operator's public face
        if namespace in _MOVING and (kind := _KINDS.get(name)) is not None:
            self._count(kind, name, args, result)
        for leaf in tree_iter(result):
            if isinstance(leaf, Tensor):
                self._see(leaf)
        return result

    def _count(self, kind: str, name: str, args: tuple[Any, ...], result: Any) -> None:
        group = _group_of(args)
        if group is not None and group.size() == 1:
            return  # nothing is sent
        call = Call(kind, "" if group is None else group.group_name)
        tensors = [leaf for leaf in tree_iter(result if name in _WHOLE_IS_RESULT else args) if isinstance(leaf, Tensor)]
        self.counts.calls[call] += 1
        self.counts.whole_bytes[call] += max((tensor.numel() * tensor.element_size() for tensor in tensors), default=0)

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001  # identity of a storage; no public name
        size = storage.nbytes()
        if key not in self._storages:
            self._storages[key] = 0
            weakref.finalize(storage, self._forget, key)
        self._sized(key, size)

    def _sized(self, key: int, size: int) -> None:
        if key in self._storages:
            self.counts.live_bytes += size - self._storages[key]
            self._storages[key] = size
            self.counts.peak_bytes = max(self.counts.peak_bytes, self.counts.live_bytes)

    def _forget(self, key: int) -> None:
        self.counts.live_bytes -= self._storages.pop(key, 0)


class _Within(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Continues counting within our own operators, whose inner operators PyTorch hides."""

    def __init__(self, counting: Counting) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.counting = counting

    def __torch_dispatch__(  # PyTorch's hook
        self, operator: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self.counting.__torch_dispatch__(operator, types, args, kwargs)


def _group_of(args: tuple[Any, ...]) -> dist.ProcessGroup | None:
    for leaf in reversed(args):
        if isinstance(leaf, str) and leaf not in {"sum", "max", "avg", "min"}:
            return _resolve_process_group(cast("GroupName", leaf))
        if isinstance(leaf, torch.ScriptObject):
            try:
                return dist.ProcessGroup.unbox(leaf)
            except (RuntimeError, AttributeError, TypeError):
                continue
    return None
