"""A round's means: no participant's figures count for more than its share, and none can break the record."""

from __future__ import annotations

import json
import math
import sys

import pytest

from atoll.server.rounds import Member, MemberStatus
from atoll.server.runs.records import MAX_MEANS, claimed_seconds, metrics_of, report_metrics
from atoll.wire.v1 import transfer_pb2

HUGE = sys.float_info.max
ANY = 1000


def reported(
    name: str,
    *,
    declared: int = 10,
    weight: int = 10,
    training: dict[str, float] | None = None,
    evaluation: dict[str, float] | None = None,
    held_out: int = 10,
) -> Member:
    metrics = report_metrics(training or {}, evaluation or {}, held_out)
    return Member(name, declared, MemberStatus.REPORTED, reported_weight=weight, metrics=metrics)


def test_means_are_weighted_and_only_reports_count() -> None:
    members = [
        reported("a", declared=1, weight=1, training={"loss": 1.0}),
        reported("b", declared=3, weight=3, training={"loss": 5.0}),
        Member("c", 100, MemberStatus.LATE, reported_weight=100, metrics=(("train/loss", 1e9),)),
    ]
    assert metrics_of(members, ANY) == {"train/loss": 4.0}


@pytest.mark.parametrize("value", [1.7e308, HUGE, -HUGE])
def test_values_near_the_largest_give_a_finite_mean(value: float) -> None:
    members = [reported(name, weight=7, training={"loss": value}) for name in "abc"]
    assert metrics_of(members, ANY).get("train/loss", value) == pytest.approx(value)
    json.dumps(metrics_of(members, ANY), allow_nan=False)


def test_an_evaluation_counts_for_at_most_what_its_member_declared() -> None:
    honest = [reported(name, evaluation={"accuracy": 0.9}) for name in "abc"]
    liar = reported("d", evaluation={"accuracy": 0.1}, held_out=2**40)
    assert metrics_of([*honest, liar], ANY) == {"eval/accuracy": pytest.approx(0.7), "eval/examples": 40.0}


def test_declaring_much_helps_no_further_than_the_runs_bound() -> None:
    liar = reported("b", declared=2**40, weight=2**40, training={"loss": 0.0}, evaluation={"x": 0.0}, held_out=2**40)
    found = metrics_of([reported("a", training={"loss": 2.0}, evaluation={"x": 2.0}), liar], 10)
    assert found == {"eval/examples": 20.0, "eval/x": 1.0, "train/loss": 1.0}


def test_a_member_that_declared_nothing_counts_as_one() -> None:
    assert metrics_of([reported("a", declared=0, evaluation={"x": 3.0})], ANY) == {"eval/examples": 1.0, "eval/x": 3.0}


def test_if_there_are_too_many_metrics_the_most_reported_stay() -> None:
    flood = {f"a{number:03}": 1.0 for number in range(MAX_MEANS)}
    members = [reported("a", training=flood), *(reported(name, training={"loss": 1.0}) for name in "bc")]
    found = metrics_of(members, ANY)
    assert len(found) == MAX_MEANS
    assert "train/loss" in found
    assert "train/a063" not in found


@pytest.mark.parametrize("odd", [math.nan, math.inf, -1.0, 0.0, 1e9])
def test_what_a_participant_cannot_have_spent_is_not_kept(odd: float) -> None:
    report = transfer_pb2.ReportRequest(train_seconds=odd, download_seconds=2.0, upload_seconds=0.5)
    assert claimed_seconds(report) == (("download", 2.0), ("upload", 0.5))
