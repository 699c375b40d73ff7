"""scikit-learn's handwritten digits, split unevenly over clients: Dirichlet over the classes (Hsu et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from atoll.server.errors import InvalidRequestError
from atoll.text.installing import install_hint

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

CLASSES = 10
HELD_OUT_SHARE = 0.2
MIN_EXAMPLES = 10
_DIGITS = Path("datasets", "data", "digits.csv.gz")
"""The file in the package ``sklearn``."""


@dataclass(frozen=True)
class Digits:
    """Examples: ``images`` float32 (n, 64) from -1 to 1, ``labels`` int64 (n,) from 0 to 9."""

    images: Floats
    labels: Ints

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, index: Ints) -> Digits:
        """The examples at these indices."""
        return Digits(self.images[index], self.labels[index])

    def write(self, path: Path, seed: int) -> None:
        """Write an .npz file without pickles."""
        np.savez(path, images=self.images, labels=self.labels, seed=np.int64(seed))


@dataclass(frozen=True)
class Shards:
    """The data of a federation: each client's data, and the server's test set."""

    clients: tuple[Digits, ...]
    held_out: Digits


def load_digits() -> Digits:
    """The 1,797 digits that scikit-learn brings; nothing is downloaded.

    The file is read directly: importing scikit-learn takes seconds.

    Raises:
        InvalidRequestError: if scikit-learn is not installed or keeps its digits elsewhere.
    """
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise InvalidRequestError(
            "demo.data", "the demo's data is not there: no module 'sklearn'", install_hint("demo")
        )
    file = Path(found.origin).parent / _DIGITS
    if not file.is_file():
        raise InvalidRequestError(
            "demo.data", "this scikit-learn has no such file of digits", install_hint("demo"), where=file
        )
    rows = np.loadtxt(file, delimiter=",", dtype=np.float32)
    pixels, labels = rows[:, :-1], rows[:, -1]  # pixels range from 0 to 16
    return Digits(pixels / np.float32(8.0) - np.float32(1.0), labels.astype(np.int64))


def split(digits: Digits, clients: int, alpha: float, seed: int, least: int = MIN_EXAMPLES) -> Shards:
    """Hold out a fifth of each class, and divide the rest among ``clients`` by a Dirichlet(alpha) draw for each class.

    Every client gets at least ``least`` examples.

    Raises:
        InvalidRequestError: if there are too few examples for the number of clients.
    """
    rng = np.random.default_rng(seed)
    held_out, rest = _hold_out(digits.labels, rng)
    if clients * least > len(rest):
        raise InvalidRequestError(
            "demo.clients", f"{clients} clients: there are examples for 1 to {len(rest) // least}"
        )
    dealt = _deal(digits.labels[rest], clients, alpha, rng, least)
    return Shards(tuple(digits.at(rest[rng.permutation(own)]) for own in dealt), digits.at(held_out))


def _hold_out(labels: Ints, rng: np.random.Generator) -> tuple[Ints, Ints]:
    held_out, rest = [], []
    for label in range(CLASSES):
        places = rng.permutation(np.flatnonzero(labels == label))
        cut = round(HELD_OUT_SHARE * len(places))
        held_out.append(places[:cut])
        rest.append(places[cut:])
    return np.concatenate(held_out), np.concatenate(rest)


def _deal(labels: Ints, clients: int, alpha: float, rng: np.random.Generator, least: int) -> list[Ints]:
    """Indices of each client's examples; clients with fewer than ``least`` get some from those with the most."""
    hands: list[list[int]] = [[] for _ in range(clients)]
    for label in range(CLASSES):
        places = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        cuts = (np.cumsum(shares)[:-1] * len(places)).astype(np.int64)
        for hand, part in zip(hands, np.split(places, cuts), strict=True):
            hand.extend(part.tolist())
    while len(poorest := min(hands, key=len)) < least:
        richest = max(hands, key=len)
        poorest.append(richest.pop(int(rng.integers(len(richest)))))
    return [np.array(hand, dtype=np.int64) for hand in hands]
