"""Handwritten digits from scikit-learn: data for the small vision model, without a download."""

from __future__ import annotations

import blake3
import numpy as np
from numpy.typing import NDArray

from atoll.datacenter.data.packing import Ints, Rows
from atoll.datacenter.data.stdlib import Split
from atoll.datacenter.errors import MissingExtraError

CLASSES, SIDE = 10, 8
_BRIGHTEST = 16.0
_HELD_OUT_OF = 8
"""One in this many images is held out."""


class Digits:
    """1,797 images of 8 by 8 pixels, an eighth of them held out.

    ``rows`` returns inputs float32 [b, 1, 8, 8] in [0, 1] and labels int64 [b] in [0, 10).

    Raises:
        MissingExtraError: if scikit-learn is not installed.
    """

    def __init__(self, split: Split = "train") -> None:
        try:
            from sklearn import datasets  # noqa: PLC0415  # an optional extra, slow to import
        except ModuleNotFoundError as error:
            raise MissingExtraError("scikit-learn", "vision", 'source = "digits"') from error
        pixels, labels = datasets.load_digits(return_X_y=True)
        here = (np.arange(len(labels)) % _HELD_OUT_OF == 0) == (split == "held_out")
        images = (np.asarray(pixels, np.float32) / _BRIGHTEST).reshape(-1, 1, SIDE, SIDE)
        self._images: NDArray[np.float32] = images[here]
        self._labels: Ints = np.asarray(labels, np.int64)[here]
        self.name = f"digits, {split}"
        self.digest = blake3.blake3(self._images.tobytes() + self._labels.tobytes()).hexdigest()

    def __len__(self) -> int:
        return self._labels.size

    def rows(self, indices: Ints) -> Rows:
        """Return the images with these indices, and their labels."""
        return Rows(self._images[indices], self._labels[indices])
