"""Score histograms: what participants send so that the server can compute the AUC of all their examples together.

A mean of participants' AUCs is not the AUC of their examples: it never compares a positive example of one with a
negative one of another, and is undefined for a participant with only one class. Sums of histograms have neither
problem.
"""

from collections.abc import Sequence

SCORE_BINS = 256
"""Bins of equal width over scores from 0 to 1: a score s belongs to bin floor(256 s), the score 1 to the last one."""
MAX_HISTOGRAMS = 16
"""Maximum number of histograms in a report."""
MAX_COUNT = 1 << 40
"""Largest count of a bin."""


def area(negatives: Sequence[float], positives: Sequence[float]) -> float | None:
    """The area under the ROC curve: the probability that a positive example has a higher score than a negative one.

    Pairs of examples in one bin count one half, as ties do. The exact area differs by at most ``area_error``.

    Args:
        negatives: examples of the negative class in each bin, from low scores to high ones.
        positives: examples of the positive class likewise.

    Returns:
        None if a class has no examples.
    """
    below, ordered = 0.0, 0.0
    for negative, positive in zip(negatives, positives, strict=True):
        ordered += positive * (below + negative / 2)
        below += negative
    pairs = below * sum(positives)
    return ordered / pairs if pairs else None


def area_error(negatives: Sequence[float], positives: Sequence[float]) -> float:
    """Bound on the error of ``area`` by binning: half of the share of pairs that fall into one bin; 0 without pairs."""
    pairs = sum(negatives) * sum(positives)
    same = sum(negative * positive for negative, positive in zip(negatives, positives, strict=True))
    return same / pairs / 2 if pairs else 0.0
