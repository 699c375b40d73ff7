"""The mean of gradients over replica groups, with process groups that are created again when their members change.

Each rank sums its shard with the ranks at the same position in the other groups. The gradients are not changed until a
mean counts, so that the sum can be repeated without a lost group. This takes one more copy of the rank's gradients
while a step is summed, and one for each step that a late group has not applied yet.

A group that has also computed a late group's gradient sends it to that group, which adds it to the sum in its own
place. So numbers are always added in the same order, whichever group computed them. This takes two more copies.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import AllreduceOptions, PrefixStore, ProcessGroupGloo
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from atoll.datacenter.elastic.replicas.messages import Quorum

BUCKET_BYTES = 25 << 20
"""Bytes that one operation sums."""
CONNECT_TIMEOUT_S = 30.0
"""Seconds to connect with the others; a member that is lost in that time delays them by as much."""
POLL_S = 0.01
"""Seconds between two checks whether the others have come."""


@dataclass(frozen=True)
class Place:
    """A parameter's part of a flat buffer.

    Attributes:
        parameter: the parameter, of which this rank holds a shard.
        start: index of its first element.
        count: number of elements of the shard.
    """

    parameter: nn.Parameter
    start: int
    count: int


class Flat:
    """One buffer for the gradients of parameters of one format and device.

    The last elements of a buffer, one for each parameter, hold the number of groups in which the parameter has a
    gradient. If it is 0, the optimiser skips the parameter, as it does without replica groups.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.places: list[Place] = []
        start = 0
        for parameter in parameters:
            count = shard_of(parameter).numel()
            self.places.append(Place(parameter, start, count))
            start += count
        self._counted = start
        shard = shard_of(parameters[0])
        self.dtype, self.device = shard.dtype, shard.device

    def zeros(self) -> Tensor:
        """Return an empty contribution."""
        return torch.zeros(self._counted + len(self.places), dtype=self.dtype, device=self.device)

    @torch.no_grad()
    def weighted(self, weight: float) -> Tensor:
        """Return the gradients, each times a weight."""
        found = self.zeros()
        for index, place in enumerate(self.places):
            if (gradient := place.parameter.grad) is not None:
                part = found[place.start : place.start + place.count]
                torch.mul(shard_of(gradient).reshape(-1), weight, out=part)
                found[self._counted + index] = 1
        return found

    @torch.no_grad()
    def scaled(self, kept: Tensor, weight: float) -> Tensor:
        """Return gradients that ``weighted(1.0)`` has kept, each times a weight."""
        found = kept.clone()
        found[: self._counted].mul_(weight)
        return found

    @torch.no_grad()
    def apply(self, mean: Tensor) -> None:
        """Write a sum of contributions into the gradients."""
        present = mean[self._counted :].tolist()
        for place, seen in zip(self.places, present, strict=True):
            parameter = place.parameter
            if not seen:
                parameter.grad = None
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            shard = shard_of(parameter.grad)
            shard.copy_(mean[place.start : place.start + place.count].view(shard.shape))


def shard_of(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def flats_of(parameters: Sequence[nn.Parameter]) -> list[Flat]:
    """Return the buffers for the trained parameters."""
    together: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            shard = shard_of(parameter)
            together.setdefault((shard.dtype, shard.device), []).append(parameter)
    return [Flat(some) for some in together.values()]


class Averager:
    """Sums this rank's contributions with those of the other groups; used by one thread, except ``abort``.

    Args:
        flats: buffers of the gradients.
        group: number of this rank's group.
        position: number of this rank in its group.
        store: key-value store of all groups.
        timeout_s: limit of a sum.
    """

    def __init__(self, flats: Sequence[Flat], group: int, position: int, store: Store, timeout_s: float) -> None:
        self._flats, self._group, self._position = flats, group, position
        self._store, self._timeout_s = store, timeout_s
        self._ranks: dict[str, Any] = {}
        self._epoch = 0
        self._void: float = 0
        self._kept: list[Tensor] | None = None
        device = flats[0].device if flats else torch.device("cpu")
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def set_aside(self) -> None:
        """Keep this group's gradient in a buffer, as the parameters' gradients will be those of a late group."""
        with self._beside():
            self._kept = [flat.weighted(1.0) for flat in self._flats]
            self._wait()

    def forget(self) -> None:
        """Drop what ``set_aside`` has kept."""
        self._kept = None

    def sum(self, quorum: Quorum, weights: Mapping[int, float]) -> list[Tensor]:
        """Return the weighted mean over a quorum's contributors, one tensor for each buffer.

        Args:
            quorum: the members of the step.
            weights: by group whose gradient this rank holds and contributes, its share of the contributors' tokens.

        Raises:
            RuntimeError: if another member is lost or late; connections are then dropped, so that no member waits.
        """
        with self._beside():
            sums = self._own(weights.get(self._group))
            try:
                self._connect(quorum)
                self._hand_over(quorum, weights, sums)
                self._sum(sums)
            except RuntimeError:
                self.drop()
                raise
            self._wait()
            return sums

    def abort(self, attempt: float = math.inf) -> None:
        """Abort this attempt and earlier ones, from another thread.

        A sum over NCCL is aborted. A sum over gloo ends when a neighbour closes its connection. Members that have not
        come are no longer waited for.
        """
        self._void = max(self._void, attempt)
        for ranks in list(self._ranks.values()):
            if ranks.name() == "nccl":
                ranks.abort()

    def drop(self) -> None:
        """Close all connections: the others find them closed, and do the same."""
        self._ranks, self._epoch = {}, 0

    def _connect(self, quorum: Quorum) -> None:
        if quorum.epoch == self._epoch:
            return
        self.drop()
        if len(quorum.members) > 1:
            rank, size = quorum.members.index(self._group), len(quorum.members)
            place = PrefixStore(f"average/{quorum.epoch}/{self._position}", self._store)
            meet(place, rank, size, lambda: quorum.attempt <= self._void)
            for kind in sorted({flat.device.type for flat in self._flats}):
                self._ranks[kind] = connect(PrefixStore(kind, place), rank, size, kind)
        self._epoch = quorum.epoch

    def _own(self, weight: float | None) -> list[Tensor]:
        if weight is None:
            return [flat.zeros() for flat in self._flats]
        if self._kept is None:
            return [flat.weighted(weight) for flat in self._flats]
        return [flat.scaled(kept, weight) for flat, kept in zip(self._flats, self._kept, strict=True)]

    def _hand_over(self, quorum: Quorum, weights: Mapping[int, float], sums: Sequence[Tensor]) -> None:
        """Send gradients that this rank has computed for a late group; receive its own if it is the late one."""
        timeout = timedelta(seconds=self._timeout_s)
        for late, holder in quorum.held:
            if self._group == holder:
                other = quorum.members.index(late)
                for part in buckets([flat.weighted(weights[late]) for flat in self._flats]):
                    self._ranks[part.device.type].send([part], other, 0).wait(timeout)
            elif self._group == late:
                other = quorum.members.index(holder)
                for part in buckets(sums):
                    self._ranks[part.device.type].recv([part], other, 0).wait(timeout)

    def _wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    def _sum(self, sums: Sequence[Tensor]) -> None:
        options = AllreduceOptions()
        options.timeout = timedelta(seconds=self._timeout_s)
        for part in buckets(sums):
            if (ranks := self._ranks.get(part.device.type)) is not None:
                ranks.allreduce([part], options).wait()

    @contextlib.contextmanager
    def _beside(self) -> Iterator[None]:
        """Work in another stream than training, whose stream a late group still uses."""
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield


def buckets(sums: Sequence[Tensor]) -> Iterator[Tensor]:
    """Return consecutive parts of at most BUCKET_BYTES, which share the tensors' memory."""
    for whole in sums:
        yield from torch.split(whole, max(1, BUCKET_BYTES // whole.element_size()))


def meet(store: Store, rank: int, size: int, is_void: Callable[[], bool], timeout_s: float = CONNECT_TIMEOUT_S) -> None:
    """Wait until all members have come to the same store; unlike ``connect``, this can be aborted.

    Raises:
        RuntimeError: if not all come in time, or the attempt is void.
    """
    store.set(f"here/{rank}", "")
    others = [f"here/{one}" for one in range(size)]
    until_s = time.monotonic() + timeout_s
    while not store.check(others):
        if is_void():
            raise RuntimeError("a member was lost before all had come")
        if time.monotonic() >= until_s:
            raise RuntimeError(f"not all members came within {timeout_s:g} s")
        time.sleep(POLL_S)


def connect(store: Store, rank: int, size: int, kind: str, timeout_s: float = CONNECT_TIMEOUT_S) -> Any:
    """Return a process group of the ranks that use the same store: NCCL for ``cuda``, else gloo.

    Raises:
        RuntimeError: if not all come in time.
    """
    timeout = timedelta(seconds=timeout_s)
    if kind == "cuda":
        from torch.distributed import ProcessGroupNCCL  # noqa: PLC0415  # builds for the CPU lack it

        options = ProcessGroupNCCL.Options()
        options._timeout = timeout  # noqa: SLF001  # no public name for it
        return ProcessGroupNCCL(store, rank, size, options)
    return ProcessGroupGloo(store, rank, size, timeout)
