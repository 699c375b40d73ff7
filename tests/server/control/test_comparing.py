from __future__ import annotations

import pytest

from atoll.server.control import RoundSummary
from atoll.server.control.comparing import ComparedRun, Spread, compared_metrics, summaries
from atoll.server.control.curves import Source


def a_round(number: int, metrics: dict[str, float], kind: str = "train", phase: str = "released") -> RoundSummary:
    return RoundSummary(
        round=number,
        attempt=0,
        kind=kind,
        phase=phase,
        reason="",
        cohort=2,
        reported=2,
        quorum=1,
        wanted=2,
        total_weight=2,
        opened_at=0.0,
        closed_at=1.0,
        remaining_s=None,
        metrics=metrics,
        version=number,
    )


def a_run(variant: str, *values: float, name: str = "server/accuracy", **fields: object) -> ComparedRun:
    rounds = tuple(a_round(number, {name: value}) for number, value in enumerate(values))
    given: dict[str, object] = {"run": "r", "status": "finished", "reason": "", "model": "ab", "rounds": rounds}
    return ComparedRun(variant, **(given | fields))  # type: ignore[arg-type]  # keyword arguments of the test


def test_a_band_has_the_mean_and_the_extremes_where_every_repeat_has_a_value() -> None:
    (metric,) = compared_metrics([a_run("a", 0.1, 0.5), a_run("b", 0.7), a_run("a", 0.3, 0.9, 1.0)])
    assert (metric.metric, metric.source, metric.final) == ("accuracy", Source.SERVER, (0.5, 0.7, 1.0))
    first, second = metric.bands
    assert first.variant == "a"
    assert [point for found in first.points for point in found] == pytest.approx([1, 0.2, 0.1, 0.3, 2, 0.7, 0.5, 0.9])
    assert first.final.values == (0.5, 1.0)
    assert (second.variant, second.final.deviation) == ("b", None)


def test_a_metric_is_compared_from_the_source_that_most_runs_have() -> None:
    runs = [a_run("a", 0.9), a_run("b", 0.2, name="train/accuracy"), a_run("c", 0.3, name="train/accuracy")]
    (metric,) = compared_metrics(runs)
    assert (metric.source, metric.final) == (Source.TRAINING, (None, 0.2, 0.3))
    assert [band.variant for band in metric.bands] == ["b", "c"]
    (tied,) = compared_metrics(runs[:2])
    assert (tied.source, tied.final) == (Source.SERVER, (0.9, None))


def test_a_summary_keeps_runs_that_failed_apart_from_those_that_finished() -> None:
    runs = [
        a_run("a", 0.5, 0.6, seconds=1.0, sent_bytes=10, epsilon=1.0),
        a_run("a", 0.4, seconds=3.0, sent_bytes=30, epsilon=2.0),
        a_run("a", status="failed"),
    ]
    (one,) = summaries(runs)
    assert (one.runs, one.ended, one.epsilon, one.virtual_s) == (3, 2, 2.0, None)
    assert one.metrics["accuracy"].values == (0.6, 0.4)
    assert one.rounds.values == (2.0, 1.0, 0.0)
    assert one.seconds == Spread((1.0, 3.0))
    assert one.seconds.deviation == pytest.approx(2**0.5)


def test_abandoned_rounds_and_evaluations_are_no_released_models() -> None:
    rounds = (a_round(0, {}), a_round(1, {}, phase="abandoned"), a_round(1, {"eval/loss": 1.0}, kind="evaluate"))
    run = a_run("a", rounds=rounds)
    assert run.released == 1
    assert compared_metrics([run])[0].bands[0].points == ((1, 1.0, 1.0, 1.0),)


def test_runs_that_measured_nothing_have_no_metrics() -> None:
    assert compared_metrics([a_run("a")]) == ()
    assert summaries([a_run("a")])[0].metrics == {}
