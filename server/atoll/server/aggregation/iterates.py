"""Iterate averaging: a running mean of the released models, released beside them (Polyak and Juditsky 1992).

The mean is post-processing of what was released, so it costs a private run nothing, and carries less of its noise than
the last model alone (De et al. 2022, arXiv:2204.13650, Section 3.2; Shejwalkar et al. 2022, arXiv:2210.01864).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from atoll.wire.encoding import Encoding, decode, encode

if TYPE_CHECKING:
    from typing_extensions import Buffer


def share_of(decay: float, releases: int) -> float:
    """The weight of the newest of ``releases`` models in the mean.

    All models weigh the same until their number reaches ``1 / (1 - decay)``; from then on each release multiplies the
    weights of earlier ones by ``decay``.
    """
    return max(1.0 - decay, 1.0 / releases)


def moved_mean(before: Buffer | None, new: Buffer, share: float, encoding: Encoding) -> npt.NDArray[np.generic]:
    """The mean of a block after a release, as a new array in the encoding's storage dtype.

    Computed in float64 element by element and rounded once, so every machine gives the same bits.

    Args:
        before: the block of the mean so far, encoded; None before the first release, whose model is its own mean.
        new: the block of the new model, encoded.
        share: of the new model in the new mean, above 0 and at most 1.
        encoding: of the block, a plain one.
    """
    values = decode(new, encoding).astype(np.float64)
    if before is not None:
        old = decode(before, encoding).astype(np.float64)
        values = old + share * (values - old)
    return encode(values, encoding)
