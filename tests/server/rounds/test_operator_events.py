"""Pause, resume, cancel, and effects that failed permanently."""

import pytest

from atoll.server.rounds import (
    Aggregate,
    BudgetSpent,
    CancelRequested,
    ChargeAndStore,
    Charged,
    DeadlinePassed,
    DrawCohort,
    EffectFailed,
    Finish,
    IllegalTransition,
    MemberStatus,
    Patience,
    PauseRequested,
    Phase,
    Published,
    RecordMember,
    RecordRound,
    ResumeRequested,
    RetryDue,
    RoundKey,
    RoundKind,
    RunStatus,
    Situation,
    Started,
    Stop,
    SumLost,
)
from tests.server.rounds.scenario import CARRY, Story, policy


def test_a_pause_waits_for_the_round_and_holds_the_next() -> None:
    story = Story().closing().on(PauseRequested())
    assert story.stands() is Situation.CLOSING
    assert story.ignores(PauseRequested())
    story.release()
    assert story.stands() is Situation.PAUSED
    assert story.round.phase is Phase.RELEASED
    assert "DrawCohort" not in story.kinds()
    story.on(ResumeRequested())
    assert (story.stands(), story.key) == (Situation.CREATED, RoundKey(1, 0))
    assert story.effect(DrawCohort).key == RoundKey(1, 0)


def test_a_pause_may_be_taken_back_before_it_begins() -> None:
    story = Story().closing().on(PauseRequested(), ResumeRequested())
    assert story.ignores(ResumeRequested())
    assert story.release().stands() is Situation.CREATED


def test_a_pause_before_the_draw_begins_at_once_and_a_cohort_drawn_meanwhile_is_forgotten() -> None:
    story = Story().on(Started(), PauseRequested())
    assert story.stands() is Situation.PAUSED
    assert story.ignores(story.drawn("pa", "pb"))
    story.on(ResumeRequested())
    assert story.effect(DrawCohort).key == RoundKey(0, 0)
    assert story.stands() is Situation.CREATED


def test_a_pause_between_attempts_holds_the_retry() -> None:
    story = Story().training().on(DeadlinePassed(RoundKey(0, 0)), PauseRequested())
    assert story.stands() is Situation.PAUSED
    assert story.ignores(RetryDue(RoundKey(0, 0)))
    story.on(ResumeRequested())
    assert (story.stands(), story.key) == (Situation.CREATED, RoundKey(0, 1))


def test_a_pause_asked_for_during_an_attempt_that_is_abandoned_begins_then() -> None:
    story = Story().training().on(PauseRequested(), DeadlinePassed(RoundKey(0, 0)))
    assert story.stands() is Situation.PAUSED
    assert "StartRetry" not in story.kinds()


def test_a_pause_over_a_skipped_evaluation_goes_on_with_training() -> None:
    story = Story(policy(evaluate_every=1, max_attempts=1)).closing().release()
    story.training().on(PauseRequested(), DeadlinePassed(story.key))
    assert (story.stands(), story.round.kind) == (Situation.PAUSED, RoundKind.EVALUATE)
    story.on(ResumeRequested())
    assert (story.key, story.round.kind) == (RoundKey(2, 0), RoundKind.TRAIN)


def test_the_end_of_a_run_overtakes_a_pause() -> None:
    story = Story(policy(rounds=1)).closing().on(PauseRequested())
    assert story.release().state.status is RunStatus.FINISHED


@pytest.mark.parametrize("reach", ["on_created", "on_open", "closing", "aggregated"])
def test_a_cancelled_round_is_abandoned_and_its_members_are_stopped(reach: str) -> None:
    story = Story()
    match reach:
        case "on_created":
            story.on(Started())
        case "on_open":
            story.training().on(story.report("pa"))
        case "closing":
            story.closing()
        case _:
            story.aggregated()
    story.on(CancelRequested("enough"))
    assert (story.state.status, story.state.reason) == (RunStatus.CANCELLED, "enough")
    assert story.effect(RecordRound).round.phase is Phase.ABANDONED
    assert story.effect(Finish) == Finish(RunStatus.CANCELLED, "enough")
    assert all(m.status in (MemberStatus.STOPPED, MemberStatus.OVER_SELECTED) for m in story.round.roster)
    if reach == "on_open":
        assert story.effect(Stop).participants == ("pb", "pc")


def test_a_run_is_cancelled_before_its_start_and_in_its_pause() -> None:
    assert Story().on(CancelRequested("enough")).state.status is RunStatus.CANCELLED
    paused = Story().on(Started(), PauseRequested(), CancelRequested("enough"))
    assert paused.state.status is RunStatus.CANCELLED


def test_a_cancelled_run_that_carries_stops_all_who_still_work_and_drops_what_it_carried() -> None:
    story = Story(policy(late=CARRY, over_selection=2)).training("pa", "pb", "pc", "pd")
    story.on(story.report("pa"), story.report("pb"), story.report("pc")).release()
    story.on(CancelRequested("enough"))
    assert story.effect(Stop).participants == ("pd",)
    assert (
        story.effect(RecordMember).member.detail
        == "carried, but the run ended (cancelled) before a round could take it"
    )
    assert story.state.carried == ()


def test_a_charge_that_comes_after_the_cancellation_publishes_nothing() -> None:
    story = Story().aggregated().on(CancelRequested("enough"))
    assert story.ignores(Charged(RoundKey(0, 0)))
    assert story.effects == ()


def test_commands_to_a_run_that_has_ended() -> None:
    story = Story().on(CancelRequested("enough"))
    assert story.ignores(CancelRequested("again"))
    with pytest.raises(IllegalTransition, match="run rstory: event 'pause_requested' is not allowed in ended"):
        story.on(PauseRequested())
    with pytest.raises(IllegalTransition, match="run rstory: event 'resume_requested' is not allowed in ended"):
        story.on(ResumeRequested())


def test_an_effect_that_failed_for_good_fails_the_run_by_name() -> None:
    story = Story().aggregated()
    story.on(EffectFailed(story.key, "ChargeAndStore", "the noise is not on record"))
    reason = "ChargeAndStore of round 1: the noise is not on record"
    assert (story.state.status, story.state.reason) == (RunStatus.FAILED, reason)
    assert story.effect(Finish) == Finish(RunStatus.FAILED, reason)


def test_a_round_that_there_is_no_budget_for_is_drawn_when_the_run_goes_on() -> None:
    story = Story().on(Started())
    story.on(BudgetSpent(story.key, "the limit is reached"))
    assert (story.stands(), story.state.reason) == (Situation.PAUSED, "the limit is reached")
    assert story.ignores(BudgetSpent(story.key, "once more"))
    story.on(ResumeRequested())
    assert (story.stands(), story.state.reason, story.key) == (Situation.CREATED, "", RoundKey(0, 0))
    assert story.effect(DrawCohort).key == story.key


def test_a_sum_that_there_is_no_budget_for_is_kept_and_charged_when_the_run_goes_on() -> None:
    story = Story().aggregated()
    asked = story.effect(ChargeAndStore)
    story.on(BudgetSpent(story.key, "the limit is reached"))
    assert (story.stands(), story.effects) == (Situation.PAUSED, ())  # its uploads above all are not dropped
    story.on(ResumeRequested())
    assert (story.stands(), story.effects) == (Situation.AGGREGATED, (asked,))
    story.on(Charged(story.key))
    assert (story.stands(), story.state.reason) == (Situation.CHARGED, "")


def test_a_sum_that_cannot_be_made_again_is_given_up_and_its_round_tried_again() -> None:
    story = Story().aggregated().on(BudgetSpent(RoundKey(0, 0), "the limit is reached"), ResumeRequested())
    story.on(SumLost(story.key, "2 updates of its sum cannot be read any more", ()))
    assert (story.stands(), story.state.version) == (Situation.ABANDONED, 0)
    assert story.effect(RecordRound).round.reason == "2 updates of its sum cannot be read any more"
    story.on(RetryDue(story.key))
    assert (story.stands(), story.key) == (Situation.CREATED, RoundKey(0, 1))


def test_a_secret_draw_is_not_drawn_again_when_updates_of_its_sum_are_lost() -> None:
    """Only drawn members can lose an update, so drawing again would depend on who was drawn."""
    story = Story(policy(patience=Patience.DEADLINE, quorum=0)).training()
    first, second = story.report("pa"), story.report("pb")
    assert first.update is not None
    assert second.update is not None
    story.on(first, second, DeadlinePassed(story.key)).on(story.summed())
    lost = SumLost(story.key, "1 update of its sum cannot be read any more", (first.update,))
    story.on(lost)
    assert (story.stands(), story.key) == (Situation.CLOSING, RoundKey(0, 0))
    assert [term.participant for term in story.effect(Aggregate).contributions] == ["pb"]
    assert story.status("pa") is MemberStatus.REJECTED
    assert story.on(story.summed("m2")).ignores(lost)
    story.on(SumLost(story.key, "the other one too", (second.update,)))
    assert story.effect(Aggregate).contributions == ()
    story.on(story.summed("m3"), Charged(story.key))
    assert story.stands() is Situation.CHARGED


def test_a_charge_that_is_durable_though_the_run_has_paused_for_it_is_published() -> None:
    story = Story().aggregated().on(BudgetSpent(RoundKey(0, 0), "the limit is reached"))
    assert story.on(Charged(RoundKey(0, 0))).stands() is Situation.CHARGED
    assert story.on(Published(RoundKey(0, 0))).stands() is Situation.PAUSED
    assert (story.state.version, story.state.reason) == (1, "")
    assert story.ignores(Charged(RoundKey(0, 0)))


def test_a_run_that_waits_for_budget_may_be_cancelled() -> None:
    story = Story().aggregated().on(BudgetSpent(RoundKey(0, 0), "the limit is reached"), CancelRequested("enough"))
    assert (story.state.status, story.state.reason) == (RunStatus.CANCELLED, "enough")
    assert story.effect(RecordRound).round.phase is Phase.ABANDONED


def test_an_effect_of_an_earlier_round_that_failed_for_good_fails_the_run_too() -> None:
    story = Story().closing().release()
    story.on(EffectFailed(RoundKey(0, 0), "RecordRound", "the disk is full"))
    assert story.state.status is RunStatus.FAILED


def test_a_second_start_is_ignored() -> None:
    story = Story().on(Started())
    assert story.ignores(Started())
