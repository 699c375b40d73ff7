"""How evaluations differ between participants."""

from __future__ import annotations

from dataclasses import replace

from atoll.server.control import MemberSummary, RoundSummary
from atoll.server.control.fairness import Evaluated, Spread, by_participant, evaluated_metrics, spreads

AUC = "eval/auc"


def member(name: str, value: float | None, *, status: str = "reported", organisation: str = "") -> MemberSummary:
    metrics = {"train/loss": 0.1} if value is None else {AUC: value, "eval/examples": 30.0}
    return MemberSummary(name, organisation or f"{name}-hospital", status, "", 10, 1.0, metrics)


def a_round(number: int, *members: MemberSummary, phase: str = "released") -> RoundSummary:
    return RoundSummary(number, 0, "train", phase, "", 3, 3, 2, 3, 30, None, None, None, {}, members, version=number)


ROUNDS = (
    a_round(0, member("pa", 0.5), member("pb", 0.9), member("pc", 0.6)),
    a_round(1, member("pa", 0.7), member("pb", 0.95, status="late"), member("pc", None)),
    replace(a_round(2, member("pa", 0.1)), phase="abandoned"),
)


def test_a_round_has_the_spread_of_those_that_counted() -> None:
    first, second = spreads(ROUNDS, AUC)
    assert first == Spread(0, 0, 3, 0.5, 0.6, 0.9)
    assert first.width == 0.4
    assert second == Spread(1, 1, 1, 0.7, 0.7, 0.7)
    assert spreads(ROUNDS, "eval/loss") == ()


def test_each_participant_has_its_last_value_and_the_lowest_comes_first() -> None:
    assert by_participant(ROUNDS, AUC) == (
        Evaluated("pc", "pc-hospital", 1, 0, 0.6, 30),
        Evaluated("pa", "pa-hospital", 2, 1, 0.7, 30),
        Evaluated("pb", "pb-hospital", 1, 0, 0.9, 30),
    )


def test_only_evaluations_are_compared() -> None:
    assert evaluated_metrics(ROUNDS) == (AUC,)
