"""The row of an update: encoded on the device beside training, and in the two ways that this replaces."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from atoll.client.silo import cut_ranges
from atoll.datacenter.checkpoint.state import MODEL
from atoll.datacenter.federation.base import Base
from atoll.datacenter.federation.difference import Difference
from atoll.datacenter.federation.lane import Lane
from atoll.datacenter.federation.match import layout_of
from atoll.datacenter.federation.pieces import pieces_of
from atoll.datacenter.federation.residuals import Residuals
from atoll.datacenter.models import spec_of
from atoll.datacenter.train.trainer import Trainer
from atoll.wire.digest import DEFAULT_CHUNK_BYTES
from atoll.wire.encoding import Encoding, encode, most_elements
from benchmarks.figures import Figure
from benchmarks.silo.gpu.sizes import Size
from benchmarks.silo.gpu.speed import one_rank, seconds_of, trained

COMMAND = "python -m benchmarks.silo gpu"
ENCODING = Encoding.INT4_BLOCK
CHUNK_ELEMENTS = most_elements(ENCODING, DEFAULT_CHUNK_BYTES)
AS_FAST = 1.0
_MAX_ABS = 1e6


@dataclass(frozen=True)
class Update:
    """An update of all weights of a trainer of one rank, from zeros."""

    base: Base
    residuals: Residuals

    @property
    def elements(self) -> int:
        """Number of parameters."""
        return sum(piece.local.numel() for piece in self.base.pieces)

    def in_lane(self, lane: Lane) -> Difference:
        """Encode it into host memory as a silo does, errors included."""
        everything = range(len(self.base.pieces))
        difference = Difference(self.base, self.residuals, _MAX_ABS, everything, lane)
        self.residuals.adopt("before", difference.tag)
        chunks = tuple(cut_ranges(difference.ranges, CHUNK_ELEMENTS, ENCODING.group))
        lane.follow()
        difference.hold(chunks, ENCODING)
        difference.keep("before")
        return difference

    def on_host(self) -> None:
        """Copy each chunk to pageable memory, and encode it there, errors not included."""
        for index, piece in enumerate(self.base.pieces):
            local, start = piece.local.reshape(-1), self.base.of(index)
            for first in range(0, local.numel(), CHUNK_ELEMENTS):
                chunk = slice(first, first + CHUNK_ELEMENTS)
                encode((local[chunk].to("cpu", torch.float32) - start[chunk]).numpy(), ENCODING)


@contextmanager
def update_of(trainer: Trainer, folder: Path) -> Iterator[Update]:
    """Open the update of a trainer whose weights one rank holds whole."""
    tensors = {name.removeprefix(MODEL): value for name, value in trainer.state.model_tensors().items()}
    layout = layout_of(spec_of(trainer.job.model))
    base = Base(folder / "base", pieces_of(tensors, layout, trainer.world.device))
    residuals = Residuals(None, 0, folder)
    try:
        base.meet(trainer.world.device)
        yield Update(base, residuals)
    finally:
        base.close()
        residuals.close()


def encoded(size: Size) -> Iterator[Figure]:
    """Time until an int4 update is in the host's memory, with errors of the one before: training waits that long."""
    job = size.job(size.billion, size.batch)
    with (
        tempfile.TemporaryDirectory() as folder,
        one_rank() as world,
        trained(job, world) as trainer,
        update_of(trainer, Path(folder)) as update,
    ):
        ways: dict[str, Callable[[], object]] = {
            "lane": partial(update.in_lane, Lane(world.device)),
            "plain": partial(update.in_lane, Lane(world.device, plain=True)),
        }
        one_by_one = replace(size, steps=1)
        found = seconds_of(ways, one_by_one, world.device, repeats=3)
        found |= seconds_of({"host": update.on_host}, one_by_one, world.device, repeats=1)
        elements = update.elements
    name = f"int4 update of {elements:,} parameters, side stream and pinned memory beside neither"
    yield Figure.within(name, found["lane"] * 1e3, "ms", COMMAND, limit=found["plain"] * 1e3, target=AS_FAST)
    yield Figure.stated("  encoded on the host, without error feedback", found["host"] * 1e3, "ms", COMMAND)
