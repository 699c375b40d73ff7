"""What a mechanism is to those who release with it: its state between releases, and the noise of one release."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from atoll.server.errors import CorruptDataError
from atoll.server.privacy.mechanisms.keys import derived
from atoll.server.privacy.noise.keystream import KEY_BYTES

if TYPE_CHECKING:
    from atoll.server.aggregation.release import Readable

Integers = npt.NDArray[np.int64]
NOISE_BYTES = 8
"""Of one kept value."""


class NoiseStateError(CorruptDataError):
    """A noise state that is not one, or is asked for another release than its next."""

    def __init__(self, message: str, remedy: str = "restore the database from its latest backup") -> None:
        super().__init__("privacy.noise_state", message, remedy)


@dataclass(frozen=True, slots=True)
class KeptKey:
    """The key of noise that later releases still need, with its standard deviation in grid units."""

    key: bytes = field(repr=False)
    sigma: float


@dataclass(frozen=True, slots=True)
class NoiseState:
    """What a run's noise depends on, and all that does; kept secret, and replaced in the transaction that releases.

    Attributes:
        mechanism: its name.
        version: of the next release, from 0.
        secret: 32 bytes, of this version only: no other version's follow from them.
        kept: keys of earlier noise that later releases still need, by what the mechanism calls it.
    """

    mechanism: str
    version: int
    secret: bytes = field(repr=False)
    kept: Mapping[str, KeptKey] = field(default_factory=dict)

    @classmethod
    def begun(cls, mechanism: str, secret: bytes) -> NoiseState:
        """Before the first release, from 32 secret random bytes."""
        return cls(mechanism, 0, derived(secret, "begin", 0))

    def advanced(self, fresh: bytes, kept: Mapping[str, KeptKey] | None = None) -> NoiseState:
        """Before the next release; its secret takes in ``fresh``, 32 new random bytes. There is no way back."""
        secret = derived(self.secret, "advance", self.version, fresh)
        return NoiseState(self.mechanism, self.version + 1, secret, kept or {})

    def to_json(self) -> dict[str, object]:
        """As ``from_json`` reads it."""
        kept = {name: {"key": one.key.hex(), "sigma": one.sigma.hex()} for name, one in self.kept.items()}
        return {"mechanism": self.mechanism, "version": self.version, "secret": self.secret.hex(), "kept": kept}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> NoiseState:
        """The state again.

        Raises:
            NoiseStateError: if it is none.
        """
        try:
            kept = {
                str(name): KeptKey(_key(one["key"]), float.fromhex(one["sigma"])) for name, one in body["kept"].items()
            }
            state = cls(str(body["mechanism"]), int(body["version"]), _key(body["secret"]), kept)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NoiseStateError(f"the stored noise state is damaged: {type(error).__name__}: {error}") from error
        if state.version < 0 or not all(math.isfinite(one.sigma) for one in kept.values()):
            raise NoiseStateError(f"the stored noise state is damaged: version {state.version}, or a sigma")
        return state

    def check(self, mechanism: str, version: int) -> None:
        """Refuse to be used by another mechanism or for another release.

        Raises:
            NoiseStateError: it would draw noise again that has been released, or another's.
        """
        if (self.mechanism, self.version) != (mechanism, version):
            raise NoiseStateError(
                f"the noise state is of {self.mechanism}, release {self.version}: not of {mechanism}, release {version}"
            )


class RoundNoise(Protocol):
    """The noise of one release: the same whenever it is asked for, for any cut into blocks, from any thread."""

    @property
    def keeps(self) -> str | None:
        """Under which name this noise, sealed, must be kept for later releases: None if it need not."""
        ...

    @property
    def kept_values(self) -> int:
        """int64 values that must be kept for each element; 0 if ``keeps`` is None."""
        ...

    def block(self, start: int, stop: int) -> Integers:
        """What is added to the sum's elements [start, stop): int64 of shape (stop - start,), the caller's own."""
        ...

    def seal(self, block: Integers, start: int) -> Integers:
        """What must be kept of a block of this noise from element ``start`` on, sealed with a key of the state.

        int64 of shape (block.size * kept_values,): those of one element side by side.

        Raises:
            NoiseStateError: if this noise is not kept.
        """
        ...


class Mechanism(Protocol):
    """How noise is made over a run's releases; pure: all that it remembers is in ``NoiseState`` and ``history``.

    ``version`` counts the releases before this one. ``binding`` is a digest of what is summed: another set of
    contributions gets other noise, the same set the same noise, until ``advance``.
    """

    @property
    def name(self) -> str:
        """As in a job file."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of all that may be kept at once: what ``history`` must hold, as far as it has been kept yet."""
        ...

    def begin(self, secret: bytes) -> NoiseState:
        """The state before the first release, from 32 secret random bytes."""
        ...

    def round(
        self, state: NoiseState, version: int, binding: bytes, sigma: float, history: Mapping[str, Readable]
    ) -> RoundNoise:
        """The noise of the state's next release.

        Args:
            state: of ``version``.
            version: of the release.
            binding: see above.
            sigma: standard deviation of what is drawn, in grid units: noise multiplier times what one participant can
                move the sum by, with ``allowance``.
            history: what earlier releases said to keep, by name: what ``RoundNoise.seal`` gave for all elements.

        Raises:
            NoiseStateError: if the state is of another release or mechanism, or noise that it needs is not there.
            ValueError: for a sigma that cannot be drawn, or is not that of earlier noise that this one goes with.
        """
        ...

    def advance(self, state: NoiseState, version: int, binding: bytes, sigma: float, fresh: bytes) -> NoiseState:
        """The state after the release that ``round`` with the same arguments made.

        To be stored in the transaction that charges and releases. From it no noise of this release can be had again
        but what later releases are made of; and from an earlier state, of a back-up say, none of a later release, for
        want of ``fresh``: 32 new random bytes each time.

        Raises:
            NoiseStateError: if the state is of another release or mechanism.
        """
        ...

    def allowance(self, dimension: int) -> float:
        """What its own rounding adds to the norm of one participant's contribution to ``dimension`` elements.

        In grid units; it is added once, after weighting.
        """
        ...


def check_kept(state: NoiseState, sigma: float) -> None:
    """Refuse to go on with noise of another size.

    Raises:
        ValueError: if earlier noise, which this release's goes with, has another sigma.
    """
    for one in state.kept.values():
        if one.sigma != sigma:
            raise ValueError(
                f"sigma {sigma:g} grid units, but earlier noise of this run has {one.sigma:g}: {state.mechanism} needs "
                "one clip, noise multiplier and grid for all rounds"
            )


def _key(text: str) -> bytes:
    key = bytes.fromhex(text)
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes")
    return key
