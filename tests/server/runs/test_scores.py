"""Score histograms on the server: one AUC of all members' examples, and what is refused."""

from __future__ import annotations

import pytest

from atoll.server.errors import InvalidRequestError
from atoll.server.ingest.coordinator_api import Commit
from atoll.server.rounds import Member, MemberStatus, Scores
from atoll.server.runs.records import metrics_of
from atoll.server.runs.reporting import without_figures
from atoll.server.runs.scores import PooledScores, areas_of, scores_of
from atoll.wire.scores import SCORE_BINS
from atoll.wire.v1 import transfer_pb2


def histogram(name: str, negatives: dict[int, int], positives: dict[int, int]) -> Scores:
    bins = range(SCORE_BINS)
    return Scores(name, tuple(negatives.get(at, 0) for at in bins), tuple(positives.get(at, 0) for at in bins))


def member(participant: str, scores: Scores, declared: int = 1000) -> Member:
    own = tuple((f"eval/{name}", value) for name, value in areas_of([scores]).items())
    return Member(
        participant, declared, MemberStatus.REPORTED, metrics=(*own, ("eval/examples", 4.0)), scores=(scores,)
    )


def test_the_metric_of_a_round_is_the_auc_of_the_sum_and_not_the_mean_of_aucs() -> None:
    low = member("pa", histogram("auc", {0: 2}, {10: 2}))
    high = member("pb", histogram("auc", {100: 2}, {200: 2}))
    assert dict(low.metrics)["eval/auc"] == dict(high.metrics)["eval/auc"] == 1.0
    assert metrics_of([low, high], max_weight=1000)["eval/auc"] == 0.75


def test_a_member_with_one_class_alone_counts_in_the_sum() -> None:
    sick, well = member("pa", histogram("auc", {}, {10: 3})), member("pb", histogram("auc", {5: 3, 20: 1}, {}))
    assert "eval/auc" not in dict(sick.metrics)
    assert metrics_of([sick, well], max_weight=1000)["eval/auc"] == 0.75
    assert "eval/auc" not in metrics_of([sick], max_weight=1000)


def test_a_member_counts_for_no_more_examples_than_it_declared() -> None:
    honest = member("pa", histogram("auc", {0: 5}, {200: 5}), declared=10)
    flooding = member("pb", histogram("auc", {200: 10**9}, {0: 10**9}), declared=10)
    pooled = PooledScores()
    pooled.add(honest.scores, 10)
    pooled.add(flooding.scores, 10)
    assert pooled.areas() == {"eval/auc": 0.5}
    assert metrics_of([honest, flooding], max_weight=1000)["eval/auc"] == 0.5


def report(name: str = "auc", bins: int = SCORE_BINS, count: int = 1, number: int = 1) -> transfer_pb2.ReportRequest:
    made = transfer_pb2.ReportRequest(evaluation_weight=2)
    for at in range(number):
        one = made.scores[f"{name}{at or ''}"]
        one.negatives.extend([count] * bins)
        one.positives.extend([count] * bins)
    return made


def test_the_histograms_of_a_report_are_read_by_name() -> None:
    found = scores_of(report(number=2))
    assert [one.name for one in found] == ["auc", "auc1"]
    assert found[0].negatives == (1,) * SCORE_BINS


@pytest.mark.parametrize(
    "request_", [report(bins=255), report(bins=0), report(count=1 << 41), report(number=17), report(name="x" * 129)]
)
def test_histograms_that_cannot_be_are_refused(request_: transfer_pb2.ReportRequest) -> None:
    with pytest.raises(InvalidRequestError, match="score histogram"):
        scores_of(request_)


def test_a_private_run_keeps_no_histograms() -> None:
    kept = without_figures(Commit("pa", report(), "main"))
    assert scores_of(kept.report) == ()
