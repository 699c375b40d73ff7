"""Score histograms: what they count, what they refuse, and the AUC of many participants together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.metrics import roc_auc_score

from atoll.client import Evaluation, ScoreHistogram, UpdateError
from atoll.client.update import check_evaluation
from atoll.wire.scores import SCORE_BINS, area, area_error

Floats = npt.NDArray[np.float64]


def examples(seed: int, count: int, rate: float) -> tuple[npt.NDArray[np.bool_], Floats]:
    """Labels with this rate of positives, and scores that separate them only in part."""
    draw = np.random.default_rng(seed)
    labels = draw.random(count) < rate
    return labels, 1 / (1 + np.exp(-draw.normal(1.5 * labels - 0.7, 1.0)))


def test_the_summed_histograms_give_the_auc_of_all_examples_within_the_bound() -> None:
    """Three hospitals have different rates of disease; one has no sick patient, and therefore no AUC of its own."""
    parts = [examples(1, 400, 0.5), examples(2, 3000, 0.03), examples(3, 250, 0.0)]
    histograms = [ScoreHistogram.of(*part) for part in parts]
    assert histograms[2].auc is None
    negatives = [sum(counts) for counts in zip(*(one.negatives for one in histograms), strict=True)]
    positives = [sum(counts) for counts in zip(*(one.positives for one in histograms), strict=True)]
    labels, scores = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
    exact, found, bound = roc_auc_score(labels, scores), area(negatives, positives), area_error(negatives, positives)
    assert found is not None
    assert abs(found - exact) <= bound < 0.005
    means = np.mean([roc_auc_score(*part) for part in parts[:2]])
    assert abs(means - exact) > bound


def test_scores_that_lie_on_bins_have_the_exact_auc() -> None:
    labels = np.array([0, 1, 0, 1, 1, 0])
    scores = np.array([0.0, 1.0, 0.5, 0.5, 0.25, 0.75])
    assert ScoreHistogram.of(labels, scores).auc == pytest.approx(roc_auc_score(labels, scores), abs=1e-15)


def test_the_bins_are_of_equal_width_and_a_score_of_one_is_in_the_last() -> None:
    made = ScoreHistogram.of([1, 1, 0, 0], [1.0, 255 / 256, 0.0, 0.5 - 1e-9])
    assert (made.positives[-1], sum(made.positives)) == (2, 2)
    assert (made.negatives[0], made.negatives[SCORE_BINS // 2 - 1]) == (1, 1)


@pytest.mark.parametrize(
    ("labels", "scores", "words"),
    [
        ([0, 1], [0.5], "both need one of"),
        ([0, 2], [0.5, 0.5], "one against the rest"),
        ([0, 1], [0.5, 1.5], "give probabilities"),
        ([0, 1], [0.5, float("nan")], "give probabilities"),
    ],
)
def test_examples_that_cannot_be_are_refused(labels: list[int], scores: list[float], words: str) -> None:
    with pytest.raises(UpdateError, match=words):
        ScoreHistogram.of(labels, scores)


def test_histograms_that_cannot_be_sent_are_refused() -> None:
    made = ScoreHistogram.of([0, 1], [0.1, 0.9])
    with pytest.raises(UpdateError, match="256 bins"):
        ScoreHistogram((1,), (2,))
    with pytest.raises(UpdateError, match="name of a metric and of a score histogram"):
        check_evaluation(Evaluation({"auc": 0.5}, 2, scores={"auc": made}))
    with pytest.raises(UpdateError, match="at most 16"):
        check_evaluation(Evaluation({}, 2, scores={f"auc{number}": made for number in range(17)}))
