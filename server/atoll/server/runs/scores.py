"""Score histograms of reports, and the AUC over all participants' examples."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.server.errors import InvalidRequestError
from atoll.server.rounds import Scores
from atoll.text.printable import printable
from atoll.wire.scores import MAX_COUNT, MAX_HISTOGRAMS, SCORE_BINS, area
from atoll.wire.v1 import transfer_pb2

EVALUATION = "eval/"
"""Prefix of the names of metrics of participants' evaluations."""
_MAX_NAME_CHARS = 128


def scores_of(report: transfer_pb2.ReportRequest) -> tuple[Scores, ...]:
    """The histograms of a report, by name.

    Raises:
        InvalidRequestError: if there are too many, or one has another number of bins, too large a count or a bad name.
    """
    if len(report.scores) > MAX_HISTOGRAMS or not all(0 < len(name) <= _MAX_NAME_CHARS for name in report.scores):
        raise InvalidRequestError(
            "report.scores",
            f"{len(report.scores)} score histograms: at most {MAX_HISTOGRAMS}, with names of 1 to {_MAX_NAME_CHARS} "
            "characters",
            "report fewer histograms, or shorter names",
        )
    found = []
    for name, histogram in sorted(report.scores.items()):
        for counts in (histogram.negatives, histogram.positives):
            if len(counts) != SCORE_BINS or max(counts) > MAX_COUNT:
                raise InvalidRequestError(
                    "report.scores",
                    f"score histogram {name!r}: each class needs {SCORE_BINS} counts of at most {MAX_COUNT}",
                    "make the histogram by ScoreHistogram.of",
                )
        found.append(Scores(printable(name), tuple(histogram.negatives), tuple(histogram.positives)))
    return tuple(found)


def areas_of(scores: Sequence[Scores]) -> dict[str, float]:
    """The AUC of each of one participant's histograms; histograms with a single class are left out."""
    areas = {one.name: area(one.negatives, one.positives) for one in scores}
    return {name: found for name, found in areas.items() if found is not None}


class PooledScores:
    """Sums of the members' histograms, by the name of their metric."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[list[float], list[float]]] = {}

    def __contains__(self, metric: str) -> bool:
        return metric in self._sums

    def add(self, scores: Sequence[Scores], bound: float) -> None:
        """Add a member's histograms; one with more than ``bound`` examples counts for that many, scaled down."""
        for one in scores:
            total = sum(one.negatives) + sum(one.positives)
            share = 1 if total <= bound else bound / total
            empty = ([0.0] * SCORE_BINS, [0.0] * SCORE_BINS)
            for sums, counts in zip(
                self._sums.setdefault(EVALUATION + one.name, empty), (one.negatives, one.positives), strict=True
            ):
                sums[:] = [before + share * count for before, count in zip(sums, counts, strict=True)]

    def areas(self) -> dict[str, float]:
        """The AUC of each sum; sums with a single class are left out."""
        found = {metric: area(*sums) for metric, sums in sorted(self._sums.items())}
        return {metric: value for metric, value in found.items() if value is not None}
