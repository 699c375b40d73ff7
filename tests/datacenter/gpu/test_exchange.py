"""An update leaves a GPU by a side stream and page-locked memory with the bytes of the plain way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from atoll.client.silo import cut_ranges
from atoll.datacenter.federation.base import Base
from atoll.datacenter.federation.difference import Difference
from atoll.datacenter.federation.lane import Lane
from atoll.datacenter.federation.residuals import Residuals
from atoll.wire.encoding import Encoding, stored_items
from tests.datacenter.federation.parts import chunk, manifest_of, model, piece, places

PIECES = [("w", (0, 8), (40, 5), (50, 200)), ("w", (0, 16), (40, 16), (0, 640)), ("b", (0,), (100,), (0, 0))]
ENCODINGS = [Encoding.FLOAT32, Encoding.BFLOAT16, Encoding.INT8_BLOCK, Encoding.INT4_BLOCK]
CHUNK_ELEMENTS = 256
DEVICE = torch.device("cuda", 0)


def on(device: torch.device, folder: Path) -> Base:
    """A base of ``model(0)`` whose weights lie on a device."""
    made = Base(folder, [piece(*one) for one in PIECES])
    for held in made.pieces:
        held.local.data = held.local.data.to(device)
    start = model(0)
    for number in made.lacks(manifest_of(start)):
        made.take(manifest_of(start), number, chunk(start, number))
    return made


@pytest.mark.parametrize(
    "encoding",
    [Encoding.FLOAT32, Encoding.BFLOAT16, Encoding.INT8_BLOCK, Encoding.INT4_BLOCK],
    ids=lambda one: one.name,
)
def test_the_bytes_are_those_of_the_host_round_after_round(encoding: Encoding, tmp_path: Path) -> None:
    """While the device goes on with training: what is sent is what the weights were."""
    ways = {
        "host": (torch.device("cpu"), Lane(torch.device("cpu"))),
        "side stream": (DEVICE, Lane(DEVICE)),
        "default stream": (DEVICE, Lane(DEVICE, plain=True)),
    }
    found = {
        name: rounds(on(device, tmp_path / name), lane, encoding, tmp_path) for name, (device, lane) in ways.items()
    }
    for name in ("side stream", "default stream"):
        for one, other in zip(found[name], found["host"], strict=True):
            np.testing.assert_array_equal(one, other, err_msg=name)


def rounds(base: Base, lane: Lane, encoding: Encoding, folder: Path) -> list[npt.NDArray[np.generic]]:
    residuals = Residuals(None, 0, folder)
    sent = []
    for seed in range(1, 4):
        train(base, seed)
        difference = Difference(base, residuals, 32.0, [0, 1, 2], lane)
        residuals.adopt(f"u{seed - 1}", difference.tag)
        chunks = tuple(cut_ranges(difference.ranges, CHUNK_ELEMENTS))
        lane.follow()
        difference.hold(chunks, encoding)
        train(base, 100)
        for one in chunks:
            out = np.empty(stored_items(encoding, one.size), encoding.storage)
            difference.read(one, encoding, out)
            sent.append(out)
        difference.keep(f"u{seed}")
    residuals.close()
    return sent


def train(base: Base, seed: int) -> None:
    flat = model(seed)
    for held in base.pieces:
        held.local.copy_(torch.from_numpy(flat[places(held.ranges)]).view(held.local.shape))
