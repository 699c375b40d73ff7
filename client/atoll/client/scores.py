"""Histograms of a classifier's scores on a participant's examples, from which the server computes the joint AUC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from atoll.client.errors import UpdateError
from atoll.wire.scores import MAX_COUNT, SCORE_BINS, area


@dataclass(frozen=True)
class ScoreHistogram:
    """Counts of negative and positive examples with a score in each of 256 equal bins from 0 to 1.

    The server adds the histograms of all participants and computes the AUC of the sum: that of all examples together,
    up to binning. Two examples whose scores share a bin count as a tie, so the error is at most half of the share of
    pairs of a positive and a negative example in one bin (``atoll.wire.scores.area_error``). It is small where scores
    spread over the bins; pass scores that crowd near 0 or 1 through a monotone function first, the same one for all.

    For several classes send a histogram for each label, one class against the rest.

    Attributes:
        negatives: examples of the negative class in each bin, from low scores to high ones.
        positives: examples of the positive class likewise.
    """

    negatives: tuple[int, ...]
    positives: tuple[int, ...]

    def __post_init__(self) -> None:
        for counts in (self.negatives, self.positives):
            if len(counts) != SCORE_BINS or not all(0 <= count <= MAX_COUNT for count in counts):
                raise UpdateError(f"a ScoreHistogram has {SCORE_BINS} bins with counts from 0 to {MAX_COUNT}")

    @classmethod
    def of(cls, labels: npt.ArrayLike, scores: npt.ArrayLike) -> Self:
        """The histogram of examples.

        Args:
            labels: [examples], true or 1 for the positive class, false or 0 for the negative one.
            scores: [examples], from 0 to 1, higher for the positive class: a probability.

        Raises:
            UpdateError: for arrays of other shapes or values.
        """
        truth, values = np.asarray(labels), np.asarray(scores, dtype=np.float64)
        if truth.shape != values.shape or values.ndim != 1:
            raise UpdateError(f"labels have shape {truth.shape}, scores {values.shape}; both need one of [examples]")
        if not np.isin(truth, (0, 1)).all():
            raise UpdateError("labels are not all 0 or 1; make a histogram for each class, one against the rest")
        if not ((values >= 0) & (values <= 1)).all():
            raise UpdateError("scores are not all from 0 to 1; give probabilities")
        bins = np.minimum((values * SCORE_BINS).astype(np.int64), SCORE_BINS - 1)
        of_class = (np.bincount(bins[truth == one], minlength=SCORE_BINS).tolist() for one in (0, 1))
        return cls(*map(tuple, of_class))

    @property
    def auc(self) -> float | None:
        """The AUC of these examples alone, up to binning; None if a class has no examples."""
        return area(self.negatives, self.positives)
