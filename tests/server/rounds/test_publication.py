"""From the sum to the release, and to the next round or the end."""

import pytest

from atoll.server.rounds import (
    Aggregated,
    CancelRequested,
    ChargeAndStore,
    Charged,
    DeadlinePassed,
    DrawCohort,
    DropSpools,
    Finish,
    MemberStatus,
    MismatchedSum,
    Phase,
    Publish,
    Published,
    RecordRound,
    Rejected,
    RetryDue,
    RoundKey,
    RoundKind,
    RunStatus,
    Situation,
)
from tests.server.rounds.scenario import CARRY, Story, policy


def test_a_sum_is_charged_before_anything_else() -> None:
    story = Story().closing()
    story.on(Aggregated(story.key, 80, 2, "m1"))
    assert story.stands() is Situation.AGGREGATED
    assert (story.round.total_weight, story.round.digest) == (80, "m1")
    assert story.effects == (ChargeAndStore(story.key, RoundKind.TRAIN, "m1"),)


def test_what_is_charged_is_published() -> None:
    story = Story().aggregated().on(Charged(RoundKey(0, 0)))
    assert story.stands() is Situation.CHARGED
    assert story.effects == (Publish(story.key, RoundKind.TRAIN, "m1"),)


def test_what_is_published_is_the_new_model_and_the_next_round_begins() -> None:
    story = Story().charged().on(Published(RoundKey(0, 0)))
    assert (story.state.model, story.state.version) == ("m1", 1)
    assert (story.key, story.round.version) == (RoundKey(1, 0), 1)
    assert story.kinds() == ["RecordRound", "DropSpools", "DrawCohort"]
    record = story.effect(RecordRound).round
    assert (record.phase, record.ended_at) == (Phase.RELEASED, story.now)
    assert {m.participant: m.status for m in record.roster} == {
        "pa": MemberStatus.REPORTED,
        "pb": MemberStatus.REPORTED,
        "pc": MemberStatus.OVER_SELECTED,
    }
    assert story.effect(DropSpools) == DropSpools(RoundKey(0, 0), ())


def test_spools_that_a_later_round_may_need_are_kept() -> None:
    story = Story(policy(cohort_size=2, over_selection=2, late=CARRY)).training("pa", "pb", "pc", "pd")
    story.on(story.report("pa"), story.report("pb"), story.report("pc")).release()
    assert story.effect(DropSpools).keep == ((RoundKey(0, 0), "pc"), (RoundKey(0, 0), "pd"))


def test_a_sum_over_another_set_is_refused() -> None:
    story = Story().closing()
    with pytest.raises(MismatchedSum, match="the sum has 2 contributions of total weight 79, the round 2 of 80"):
        story.on(Aggregated(story.key, 79, 2, "m1"))
    with pytest.raises(MismatchedSum, match="the sum has 1 contributions"):
        story.on(Aggregated(story.key, 40, 1, "m1"))


def test_a_sum_asked_for_before_a_rejection_is_ignored() -> None:
    story = Story().closing()
    overtaken = story.summed()
    story.on(Rejected(story.key, "pb", "not finite"))
    assert story.ignores(overtaken)
    story.on(story.summed("m1'"))
    assert story.stands() is Situation.AGGREGATED
    assert story.ignores(overtaken)


def test_the_same_sum_again_is_ignored_and_another_result_for_it_refused() -> None:
    story = Story().aggregated()
    assert story.ignores(story.summed())
    with pytest.raises(MismatchedSum, match="aggregated to m1 of weight 80, then to m9"):
        story.on(story.summed("m9"))


def test_repetitions_on_the_way_to_the_release_are_ignored() -> None:
    story = Story().charged()
    assert story.ignores(Charged(story.key))
    assert story.ignores(story.summed())
    assert story.ignores(DeadlinePassed(story.key))
    first = story.key
    story.on(Published(first))
    for event in (story.summed(), Charged(first), Published(first), DeadlinePassed(first), RetryDue(first)):
        assert story.ignores(event)


def test_after_the_last_round_the_run_is_finished() -> None:
    story = Story(policy(rounds=1)).closing().release()
    assert story.state.status is RunStatus.FINISHED
    assert story.round.phase is Phase.RELEASED
    assert story.effect(Finish) == Finish(RunStatus.FINISHED, "all rounds are done")


def test_evaluate_rounds_come_every_so_many_and_at_the_end_but_not_twice() -> None:
    def kinds(evaluate_every: int, final_evaluation: bool) -> str:
        story = Story(policy(rounds=3, evaluate_every=evaluate_every, final_evaluation=final_evaluation))
        played = ""
        while story.stands() is not Situation.ENDED:
            story.open("pa", "pb")
            played += story.round.kind[0]
            story.on(story.report("pa"), story.report("pb")).release()
        return played

    assert kinds(0, final_evaluation=False) == "ttt"
    assert kinds(1, final_evaluation=False) == "tetete"
    assert kinds(2, final_evaluation=False) == "ttet"
    assert kinds(2, final_evaluation=True) == "ttete"
    assert kinds(3, final_evaluation=True) == "ttte"
    assert kinds(0, final_evaluation=True) == "ttte"


def test_an_evaluation_changes_no_model() -> None:
    story = Story(policy(evaluate_every=1)).closing().release()
    story.open().on(story.report("pa"), story.report("pb"))
    assert story.asked.kind is RoundKind.EVALUATE
    assert all(t.update is None for t in story.asked.contributions)
    story.release("metrics of m1")
    assert (story.state.model, story.state.version) == ("m1", 1)
    assert (story.state.tally.trained, story.state.tally.evaluated, story.state.tally.contributions) == (1, 1, 4)


def test_the_state_does_not_grow_with_the_rounds_played() -> None:
    for rules, remembered in ((policy(rounds=30), 1), (policy(rounds=30, late=CARRY), 2)):
        story = Story(rules)
        while story.stands() is not Situation.ENDED:
            story.open("pa", "pb").on(story.report("pa"), story.report("pb")).release()
            assert len(story.state.past) <= remembered
            assert story.state.carried == ()


def test_an_abandoned_attempt_is_tried_again_when_the_retry_is_due() -> None:
    story = Story().training().on(DeadlinePassed(RoundKey(0, 0)))
    assert story.stands() is Situation.ABANDONED
    story.retry()
    assert (story.stands(), story.key) == (Situation.CREATED, RoundKey(0, 1))
    assert story.effect(DrawCohort).key == RoundKey(0, 1)
    assert story.ignores(RetryDue(RoundKey(0, 0)))


def test_when_attempts_are_spent_the_run_fails_and_says_why() -> None:
    story = Story().training().on(DeadlinePassed(RoundKey(0, 0))).retry()
    story.training().on(DeadlinePassed(RoundKey(0, 1)))
    assert story.state.status is RunStatus.FAILED
    reason = "round 1 was abandoned 2 times, lastly because quorum 1 was missed at the deadline: 0 reports counted"
    assert story.effect(Finish) == Finish(RunStatus.FAILED, reason)


def test_an_evaluation_whose_attempts_are_spent_is_skipped() -> None:
    """It would not have changed the model, so the training is not thrown away for it."""
    story = Story(policy(evaluate_every=1, max_attempts=1)).closing().release()
    story.training().on(DeadlinePassed(story.key))
    assert (story.key, story.round.kind) == (RoundKey(2, 0), RoundKind.TRAIN)
    assert story.stands() is Situation.CREATED
    assert story.state.tally.abandoned == 1


def test_an_evaluation_without_able_participants_is_skipped_at_once() -> None:
    """Participants that cannot evaluate will not be able to at the next attempt either."""
    story = Story(policy(evaluate_every=1, max_attempts=5)).closing().release()
    assert story.round.kind is RoundKind.EVALUATE
    story.on(story.drawn())
    assert (story.key, story.round.kind, story.stands()) == (RoundKey(2, 0), RoundKind.TRAIN, Situation.CREATED)
    assert story.state.tally.abandoned == 1


def test_cancelling_while_charged_publishes_first() -> None:
    story = Story().charged().on(CancelRequested("enough"))
    assert story.stands() is Situation.CHARGED
    assert story.ignores(CancelRequested("more than enough"))
    story.on(Published(story.key))
    assert (story.state.status, story.state.model) == (RunStatus.CANCELLED, "m1")
    assert story.effect(Finish) == Finish(RunStatus.CANCELLED, "enough")
