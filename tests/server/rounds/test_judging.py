"""The best model, and early stopping."""

from dataclasses import replace

import pytest

from atoll.server.rounds import (
    Charged,
    PauseRequested,
    PolicyError,
    Published,
    ResumeRequested,
    RoundKind,
    RunPolicy,
    RunStatus,
)
from atoll.server.rounds.judging import Criterion, Mode, Standing, StopRule, judged, stop_reason
from tests.server.rounds.scenario import Story, policy

ACCURACY = Criterion("eval/accuracy", Mode.MAX)
LOSS = Criterion("server/loss", Mode.MIN)


def standing_after(criterion: Criterion, values: list[float | None], min_delta: float = 0.0) -> Standing | None:
    """The standing after rounds that handed out model 0, 1, ... with these values; None: not measured."""
    found = None
    for version, value in enumerate(values):
        metrics = () if value is None else ((criterion.metric, value),)
        found = judged(found, criterion, version, metrics, min_delta)
    return found


def test_a_participants_metric_measures_the_model_that_was_handed_out_the_servers_the_one_released() -> None:
    assert standing_after(ACCURACY, [0.1, 0.9, 0.5]) == Standing(version=1, value=0.9, measured=2, since=1)
    assert standing_after(LOSS, [0.9, 0.1, 0.5]) == Standing(version=2, value=0.1, measured=3, since=1)


def test_rounds_without_the_metric_are_no_measurements() -> None:
    assert standing_after(ACCURACY, [None, None]) is None
    assert standing_after(ACCURACY, [0.5, None, None, 0.4]) == Standing(version=0, value=0.5, measured=3, since=1)


def test_of_two_measurements_of_one_model_the_first_counts() -> None:
    first = judged(None, ACCURACY, 4, (("eval/accuracy", 0.5),))
    assert judged(first, ACCURACY, 4, (("eval/accuracy", 0.9),)) is first


def test_an_improvement_is_more_than_min_delta_and_an_equal_value_is_none() -> None:
    assert standing_after(ACCURACY, [0.5, 0.5]) == Standing(0, 0.5, 1, since=1)
    assert standing_after(ACCURACY, [0.5, 0.51, 0.52], min_delta=0.02) == Standing(0, 0.5, 2, since=2)
    assert standing_after(ACCURACY, [0.5, 0.53], min_delta=0.02) == Standing(1, 0.53, 1)


def test_the_reason_says_what_was_measured() -> None:
    rule = StopRule(ACCURACY, patience=2, min_delta=0.01)
    assert stop_reason(rule, None) == ""
    assert stop_reason(rule, Standing(3, 0.8, 4, since=1)) == ""
    assert stop_reason(rule, Standing(3, 0.8, 5, since=2)) == (
        "stopped early: eval/accuracy was best with 0.8 after 3 rounds; the 2 models measured since did not improve it "
        "by more than 0.01"
    )


@pytest.mark.parametrize(("patience", "min_delta"), [(0, 0.0), (1, -0.1), (1, float("nan"))])
def test_rules_that_cannot_be_are_refused(patience: int, min_delta: float) -> None:
    with pytest.raises(PolicyError, match="stop"):
        StopRule(ACCURACY, patience, min_delta)


def stopping(*, rounds: int = 9, patience: int = 1, final_evaluation: bool = False) -> RunPolicy:
    rules = policy(rounds=rounds, final_evaluation=final_evaluation)
    return replace(rules, best=ACCURACY, stop=StopRule(ACCURACY, patience))


def release(story: Story, digest: str, accuracy: float) -> Story:
    """Play the live round to its release with this accuracy of the model that it handed out."""
    story.closing()
    measured = (("eval/accuracy", accuracy),)
    return story.on(story.summed(digest), Charged(story.key, measured), Published(story.key))


def test_a_run_without_a_better_model_ends_early_and_says_so() -> None:
    story = Story(stopping())
    for digest, accuracy in (("m1", 0.5), ("m2", 0.6), ("m3", 0.6)):
        assert story.state.status is not RunStatus.FINISHED
        release(story, digest, accuracy)
    assert (story.state.status, story.state.version) == (RunStatus.FINISHED, 3)
    assert story.state.best == Standing(1, 0.6, 2, since=1)
    assert story.state.reason.startswith("stopped early: eval/accuracy was best with 0.6 after 1 round;")


def test_a_run_that_ends_early_still_has_its_final_evaluation() -> None:
    story = Story(stopping(final_evaluation=True))
    release(story, "m1", 0.5)
    release(story, "m2", 0.4)
    assert story.round.kind is RoundKind.EVALUATE
    assert story.state.stopping


def test_a_pause_does_not_undo_the_decision_to_stop() -> None:
    story = Story(stopping(final_evaluation=True))
    release(story, "m1", 0.5)
    story.closing().on(PauseRequested(), story.summed("m2"), Charged(story.key, (("eval/accuracy", 0.4),)))
    story.on(Published(story.key))
    assert story.state.status is RunStatus.PAUSED
    story.on(ResumeRequested())
    assert story.round.kind is RoundKind.EVALUATE
