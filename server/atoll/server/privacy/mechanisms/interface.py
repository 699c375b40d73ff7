"""The interface of mechanisms: the state between releases, and the noise of one release."""

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
    from atoll.server.aggregation.next_model import Readable

Integers = npt.NDArray[np.int64]
NOISE_BYTES = 8
"""Bytes of one kept value."""


class NoiseStateError(CorruptDataError):
    """A noise state is damaged, or is used for a release other than its next one."""

    def __init__(self, message: str, remedy: str = "restore the database from its latest backup") -> None:
        super().__init__("privacy.noise_state", message, remedy)


@dataclass(frozen=True, slots=True)
class KeptKey:
    """The key of noise that later releases still need, with its standard deviation in grid units."""

    key: bytes = field(repr=False)
    sigma: float


@dataclass(frozen=True, slots=True)
class NoiseState:
    """The state that determines a run's noise; kept secret, and replaced in the transaction that releases.

    Attributes:
        mechanism: its name.
        version: number of the next release, from 0.
        secret: 32 bytes for this version only; they do not determine the secret of another version.
        kept: keys of earlier noise that later releases still need, by the mechanism's names for it.
    """

    mechanism: str
    version: int
    secret: bytes = field(repr=False)
    kept: Mapping[str, KeptKey] = field(default_factory=dict)

    @classmethod
    def begun(cls, mechanism: str, secret: bytes) -> NoiseState:
        """The state before the first release, from 32 secret random bytes."""
        return cls(mechanism, 0, derived(secret, "begin", 0))

    def advanced(self, fresh: bytes, kept: Mapping[str, KeptKey] | None = None) -> NoiseState:
        """The state before the next release: a one-way function of this secret and 32 new random bytes, ``fresh``."""
        secret = derived(self.secret, "advance", self.version, fresh)
        return NoiseState(self.mechanism, self.version + 1, secret, kept or {})

    def to_json(self) -> dict[str, object]:
        """The state as JSON values for ``from_json``."""
        kept = {name: {"key": one.key.hex(), "sigma": one.sigma.hex()} for name, one in self.kept.items()}
        return {"mechanism": self.mechanism, "version": self.version, "secret": self.secret.hex(), "kept": kept}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> NoiseState:
        """Parse the result of ``to_json``.

        Raises:
            NoiseStateError: if it is not a noise state.
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
        """Check that the state belongs to this mechanism and release.

        Raises:
            NoiseStateError: if it does not; using it would draw released noise again, or another mechanism's noise.
        """
        if (self.mechanism, self.version) != (mechanism, version):
            raise NoiseStateError(
                f"the noise state is of {self.mechanism}, release {self.version}: not of {mechanism}, release {version}"
            )


class RoundNoise(Protocol):
    """The noise of one release: the same for any division into blocks and in any thread.

    The defaults are for noise that no later release needs.
    """

    @property
    def keeps(self) -> str | None:
        """The name under which this noise, sealed, must be kept for later releases; None if it need not be."""
        return None

    @property
    def kept_values(self) -> int:
        """int64 values that must be kept for each element; 0 if ``keeps`` is None."""
        return 0

    def block(self, start: int, stop: int) -> Integers:
        """The noise of the sum's elements [start, stop): a new int64 array of shape (stop - start,)."""
        ...

    def seal(self, block: Integers, start: int) -> Integers:
        """The values to keep of a block of this noise from element ``start`` on, encrypted with a key of the state.

        int64 of shape (block.size * kept_values,); the values of one element are adjacent.

        Raises:
            NoiseStateError: if this noise is not kept.
        """
        raise NoiseStateError(f"{block.size} elements from {start}: this noise is not kept")


class Mechanism(Protocol):
    """Makes the noise of a run's releases; pure: all state is in ``NoiseState`` and ``history``.

    ``version`` counts the releases before this one. ``binding`` is a digest of the summed contributions. Until
    ``advance``, the same set of contributions gets the same noise, and another set gets different noise.

    The defaults are for a mechanism that keeps no noise and rounds nothing.
    """

    @property
    def name(self) -> str:
        """The mechanism's name in a job file."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of all noise that may be kept at once; ``history`` must hold the noise kept so far."""
        return ()

    @property
    def most_kept_values(self) -> int:
        """Maximum number of int64 values kept per element, for earlier releases and the current one."""
        return 0

    def begin(self, secret: bytes) -> NoiseState:
        """The state before the first release, from 32 secret random bytes."""
        return NoiseState.begun(self.name, secret)

    def round(
        self, state: NoiseState, version: int, binding: bytes, sigma: float, history: Mapping[str, Readable]
    ) -> RoundNoise:
        """The noise of the state's next release.

        Args:
            state: the state before release ``version``.
            version: number of the release.
            binding: digest of the summed contributions, as above.
            sigma: standard deviation of the drawn noise, in grid units: the noise multiplier times the amount by which
                one participant can move the sum, including ``allowance``.
            history: kept noise of earlier releases by name, as ``RoundNoise.seal`` returned it for all elements.

        Raises:
            NoiseStateError: if the state belongs to another release or mechanism, or kept noise is missing.
            ValueError: if noise of this sigma cannot be drawn, or the earlier noise had another sigma.
        """
        ...

    def advance(self, state: NoiseState, version: int, binding: bytes, sigma: float, fresh: bytes) -> NoiseState:
        """The state after the release that ``round`` with the same arguments made.

        It is stored in the transaction that charges and releases. This release's noise cannot be derived from it,
        except the part that later releases need. The noise of a later release cannot be derived from an earlier state,
        for example from a backup, because each step needs 32 new random bytes, ``fresh``.

        Raises:
            NoiseStateError: if the state belongs to another release or mechanism.
        """
        ...

    def allowance(self, dimension: int) -> float:  # noqa: ARG002 - nothing is rounded unless a mechanism says so
        """The amount that rounding adds to the norm of one participant's contribution of ``dimension`` elements.

        In grid units; it is added once, after weighting.
        """
        return 0.0


def check_kept(state: NoiseState, sigma: float) -> None:
    """Check that the noise has the same sigma as the kept noise.

    Raises:
        ValueError: if the kept noise, with which this release's noise is correlated, has another sigma.
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
