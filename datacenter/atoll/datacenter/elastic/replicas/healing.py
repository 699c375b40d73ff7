"""Send the state of a live group to one that comes back: rank by rank, from memory to memory, over gloo.

Each rank sends what it holds to the rank at the same position: parameters, buffers, states of the optimiser, and the
numbers and strings of ``TrainingState`` (step, tokens, position of the data, loss scale). Random generators are not
sent: groups draw different numbers.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from atoll.datacenter.elastic.replicas.average import BUCKET_BYTES, connect, shard_of
from atoll.datacenter.errors import TrainingError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from atoll.datacenter.checkpoint.state import TrainingState
    from atoll.datacenter.elastic.replicas.messages import Heal

SOURCE, TARGET = 0, 1
TIMEOUT_S = 60.0
"""Seconds that either side waits for the other at a time."""


def send_state(state: TrainingState, heal: Heal, target: int, position: int, store: Store) -> None:
    """Send this rank's state to the rank at the same position of another group.

    Raises:
        RuntimeError: if that group is lost, or does not connect.
    """
    wire = connect(_place(heal, target, position, store), SOURCE, 2, "cpu", TIMEOUT_S)
    tensors = state.model_tensors() | state.optimiser_tensors(make=False)
    header = json.dumps({"values": state.values(), "tensors": _described(tensors)}).encode()
    _send(wire, torch.tensor([len(header)]))
    _send(wire, torch.frombuffer(bytearray(header), dtype=torch.uint8))
    for name in sorted(tensors):
        for part in torch.split(_bytes_of(shard_of(tensors[name])), BUCKET_BYTES):
            _send(wire, part.cpu())


def receive_state(state: TrainingState, heal: Heal, group: int, position: int, store: Store) -> None:
    """Receive the state of this position from the source, in place.

    Raises:
        RuntimeError: if the source is lost; this rank then holds a mixture of two states.
        TrainingError: if the source holds other tensors.
    """
    wire = connect(_place(heal, group, position, store), TARGET, 2, "cpu", TIMEOUT_S)
    length = torch.zeros(1, dtype=torch.int64)
    _receive(wire, length)
    encoded = torch.empty(int(length), dtype=torch.uint8)
    _receive(wire, encoded)
    header: dict[str, Any] = json.loads(encoded.numpy().tobytes())
    tensors = _own_tensors(state, header["tensors"])
    for name in sorted(tensors):
        _fill(wire, shard_of(tensors[name]))
    state.load_values(header["values"])


def _own_tensors(state: TrainingState, wanted: dict[str, list[Any]]) -> dict[str, Tensor]:
    """Return this rank's tensors, with states of the optimiser if the source has them."""
    found = state.model_tensors()
    if wanted.keys() - found.keys():
        found |= state.optimiser_tensors(make=True)
    else:
        state.optimiser.state.clear()  # the source has made no step
    if (mine := _described(found)) != wanted:
        differing = sorted(name for name in mine.keys() | wanted.keys() if mine.get(name) != wanted.get(name))
        raise TrainingError(f"the state of the live group has other tensors: {', '.join(differing[:5])}")
    return found


def _described(tensors: dict[str, Tensor]) -> dict[str, list[Any]]:
    shards = {name: shard_of(tensor) for name, tensor in tensors.items()}
    return {name: [str(shard.dtype), list(shard.shape)] for name, shard in shards.items()}


def _bytes_of(shard: Tensor) -> Tensor:
    return shard.detach().contiguous().reshape(-1).view(torch.uint8)


def _fill(wire: Any, shard: Tensor) -> None:
    found = torch.empty(shard.numel() * shard.element_size(), dtype=torch.uint8)
    for part in torch.split(found, BUCKET_BYTES):
        _receive(wire, part)
    with torch.no_grad():
        shard.copy_(found.view(shard.dtype).view(shard.shape))


def _send(wire: Any, part: Tensor) -> None:
    if part.numel():
        wire.send([part], TARGET, 0).wait()


def _receive(wire: Any, part: Tensor) -> None:
    if part.numel():
        wire.recv([part], SOURCE, 0).wait()


def _place(heal: Heal, target: int, position: int, store: Store) -> Store:
    return PrefixStore(f"heal/{heal.number}/{target}/{position}", store)
