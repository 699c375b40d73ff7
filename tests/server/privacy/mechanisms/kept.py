"""Consecutive releases, as a run makes them: kept noise in memory, the state through JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atoll.server.privacy.mechanisms import Mechanism, NoiseState, RoundNoise

Integers = npt.NDArray[np.int64]
SECRET = bytes(range(32))


@dataclass(frozen=True)
class Bytes:
    """A stored blob."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int, /) -> memoryview:
        return memoryview(self.data)[start:stop]


class Releases:
    """A run's releases: ``next`` gives the noise of each."""

    def __init__(self, mechanism: Mechanism, size: int, sigma: float, secret: bytes = SECRET) -> None:
        self.mechanism, self.size, self.sigma, self.secret = mechanism, size, sigma, secret
        self.state = mechanism.begin(secret)
        self.history: dict[str, Bytes] = {}

    def noise(self, binding: bytes = b"set") -> RoundNoise:
        return self.mechanism.round(self.state, self.state.version, binding, self.sigma, self.history)

    def next(self, binding: bytes = b"set") -> Integers:
        noise = self.noise(binding)
        block = noise.block(0, self.size)
        if noise.keeps is not None:
            self.history[noise.keeps] = Bytes(noise.seal(block, 0).tobytes())
        after = self.mechanism.advance(self.state, self.state.version, binding, self.sigma, self.secret)
        self.state = NoiseState.from_json(json.loads(json.dumps(after.to_json())))
        return block
