import math

from atoll.server.control import RoundSummary
from atoll.server.control.curves import Source, latest, panels, shown


def a_round(
    number: int, version: int, metrics: dict[str, float], kind: str = "train", phase: str = "released"
) -> RoundSummary:
    return RoundSummary(number, 0, kind, phase, "", 1, 1, 1, 1, 1, None, None, None, metrics, (), version)


def test_values_belong_to_the_model_that_they_were_measured_on() -> None:
    found = panels(
        [
            a_round(0, 0, {"server/accuracy": 0.5, "eval/accuracy": 0.1, "train/loss": 2.0, "eval/examples": 9.0}),
            a_round(1, 1, {"server/accuracy": 0.7, "eval/accuracy": 0.5}),
            a_round(2, 2, {"eval/accuracy": 0.7}, kind="evaluate"),
        ]
    )
    assert [panel.metric for panel in found] == ["accuracy", "loss"]
    server, participants = found[0].curves
    assert (server.source, server.points) == (Source.SERVER, ((1, 0.5), (2, 0.7)))
    assert (participants.source, participants.points) == (Source.EVALUATION, ((0, 0.1), (1, 0.5), (2, 0.7)))
    assert found[0].final == 0.7
    assert found[1].best_curve.source is Source.TRAINING


def test_abandoned_attempts_and_values_that_are_not_finite_are_left_out() -> None:
    rounds = [
        a_round(0, 0, {"train/loss": 9.0}, phase="abandoned"),
        a_round(0, 0, {"train/loss": math.nan, "x": 1.0}),
    ]
    assert [panel.metric for panel in panels(rounds)] == ["x"]


def test_the_latest_value_is_by_the_most_trustworthy_source() -> None:
    item = a_round(0, 0, {"train/loss": 9.0, "eval/loss": 3.0}, phase="open")
    assert latest(item, "loss") == 3.0
    assert latest(item, "accuracy") is None


def test_a_table_has_room_for_few_metrics_and_for_the_one_that_decides() -> None:
    rounds = [
        a_round(0, 0, {"eval/loss": 1.0, "eval/examples": 9.0}),
        a_round(1, 1, {"eval/auc": 0.5, "eval/f1": 0.5, "eval/brier": 0.1, "train/accuracy": 0.1}),
    ]
    assert shown(rounds[:1]) == ("loss",)
    assert shown(rounds) == ("accuracy", "loss", "auc")
    assert shown(rounds, "eval/f1") == ("accuracy", "loss", "f1")
    assert shown(rounds, "eval/unmeasured") == ("accuracy", "loss", "auc")
