"""Independent discrete Gaussian noise on each release (Canonne, Kamath, Steinke 2020, Section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from atoll.server.privacy.mechanisms.interface import Integers, Mechanism, NoiseState, RoundNoise
from atoll.server.privacy.mechanisms.keys import derived
from atoll.server.privacy.noise import DiscreteGaussian

if TYPE_CHECKING:
    from atoll.server.aggregation.next_model import Readable


@dataclass(frozen=True, slots=True)
class Gaussian(Mechanism):
    """Only a secret is kept from release to release."""

    @property
    def name(self) -> str:
        """See ``Mechanism``."""
        return "gaussian"

    def round(
        self,
        state: NoiseState,
        version: int,
        binding: bytes,
        sigma: float,
        history: Mapping[str, Readable],  # noqa: ARG002 - the protocol's
    ) -> Independent:
        """See ``Mechanism``."""
        state.check(self.name, version)
        return Independent(DiscreteGaussian(sigma), derived(state.secret, "round", version, binding))

    def advance(
        self,
        state: NoiseState,
        version: int,
        binding: bytes,  # noqa: ARG002 - the protocol's
        sigma: float,  # noqa: ARG002 - the protocol's
        fresh: bytes,
    ) -> NoiseState:
        """See ``Mechanism``."""
        state.check(self.name, version)
        return state.advanced(fresh)


@dataclass(frozen=True, slots=True)
class Independent(RoundNoise):
    """The noise of one release, from one key."""

    noise: DiscreteGaussian
    key: bytes = field(repr=False)

    def block(self, start: int, stop: int) -> Integers:
        """See ``RoundNoise``."""
        out = np.empty(stop - start, np.int64)
        self.noise.draw(out, self.key, start)
        return out
