"""How a round begins."""

import pytest

from atoll.server.rounds import (
    CohortDrawn,
    DrawCohort,
    Fold,
    IllegalTransition,
    Invite,
    LateMode,
    LatePolicy,
    MemberStatus,
    Patience,
    PauseRequested,
    Phase,
    PrepareRound,
    RoundKey,
    RoundKind,
    RoundPrepared,
    RunPolicy,
    RunStatus,
    Situation,
    StartDeadline,
    Started,
    StartRetry,
    StragglerPolicy,
    Weighting,
)
from tests.server.rounds.scenario import CARRY, GRID, Story, policy


def test_a_started_run_asks_for_its_first_cohort() -> None:
    story = Story().on(Started())
    assert story.stands() is Situation.CREATED
    assert story.effects == (
        DrawCohort(RoundKey(0, 0), RoundKind.TRAIN, invited=3, needed=1, excluded=(), planned_round=0),
    )


def test_a_run_paused_before_its_start_starts_paused() -> None:
    story = Story().on(PauseRequested(), Started())
    assert story.state.status is RunStatus.PAUSED
    assert story.state.round is None


def test_a_run_of_no_rounds_evaluates_the_given_model() -> None:
    story = Story(policy(rounds=0, final_evaluation=True)).on(Started())
    assert story.effect(DrawCohort).kind is RoundKind.EVALUATE


def test_a_drawn_cohort_is_recorded_with_what_reproduces_it() -> None:
    story = Story().on(Started())
    story.on(CohortDrawn(story.key, (("pb", 4), ("pa", 3)), eligible=8, sampler="uniform", seed=5))
    assert story.stands() is Situation.SAMPLED
    rnd = story.round
    assert (rnd.eligible, rnd.sampler, rnd.seed) == (8, "uniform", 5)
    assert [(m.participant, m.declared_weight, m.status) for m in rnd.roster] == [
        ("pa", 3, MemberStatus.INVITED),
        ("pb", 4, MemberStatus.INVITED),
    ]
    asked = story.effect(PrepareRound)
    assert asked.members == (("pa", 3), ("pb", 4))
    assert asked.total_weight == 7


def test_the_weight_bound_counts_no_more_than_max_weight_of_anyone() -> None:
    rules = RunPolicy(1, StragglerPolicy(2), max_weight=5)
    story = Story(rules).on(Started())
    assert story.on(story.drawn("pa", "pb", weight=9)).effect(PrepareRound).total_weight == 10


def test_the_weight_bound_of_a_uniform_mean_is_the_number_of_members() -> None:
    story = Story(RunPolicy(1, StragglerPolicy(2), weighting=Weighting.UNIFORM)).on(Started())
    assert story.on(story.drawn("pa", "pb", weight=9)).effect(PrepareRound).total_weight == 2


def test_a_cohort_smaller_than_the_quorum_is_abandoned_at_once() -> None:
    story = Story(policy(quorum=2)).on(Started())
    story.on(story.drawn("pa"))
    assert story.stands() is Situation.ABANDONED
    assert story.round.reason == "quorum 2 cannot be reached: 1 participant could be drawn"
    assert story.status("pa") is MemberStatus.STOPPED
    assert StartRetry(story.key, 5.0) in story.effects
    assert "Invite" not in story.kinds()


def test_a_prepared_round_opens_invites_and_starts_the_clock() -> None:
    story = Story().on(Started())
    story.on(story.drawn("pa", "pb", "pc")).on(RoundPrepared(story.key, 30.0, 999.0, GRID))
    assert story.stands() is Situation.OPEN
    assert (story.round.grid, story.round.window_s, story.round.deadline_at) == (GRID, 30.0, 999.0)
    assert story.effects == (
        Invite(story.key, ("pa", "pb", "pc")),
        StartDeadline(story.key, deadline_at=999.0, remaining_s=30.0),
    )


def test_a_train_round_does_not_open_without_a_grid() -> None:
    story = Story().on(Started())
    story.on(story.drawn("pa", "pb"))
    with pytest.raises(IllegalTransition, match=r"rstory: event 'round_prepared' is not allowed in sampled: .*grid"):
        story.on(RoundPrepared(story.key, 30.0, 999.0))


def test_a_second_draw_or_preparation_of_the_round_is_ignored() -> None:
    story = Story().on(Started())
    story.on(story.drawn("pa", "pb"))
    assert story.ignores(story.drawn("pc", "pd"))
    story.on(story.prepared())
    assert story.ignores(story.drawn("pc", "pd"))
    assert story.ignores(RoundPrepared(story.key, 1.0, 1.0, GRID))


def test_an_empty_poisson_sample_closes_as_an_empty_sum() -> None:
    """The empty sample is an outcome of Poisson sampling like any other: its noisy sum is released."""
    story = Story(policy(patience=Patience.ALL, quorum=0)).on(Started())
    story.on(CohortDrawn(story.key, (), 9, "poisson", 7)).on(RoundPrepared(story.key, 30.0, 999.0))
    assert story.round.phase is Phase.CLOSING
    assert story.summed().updates == 0


def test_a_carried_update_counts_from_the_opening_on_and_lowers_the_number_invited() -> None:
    story = Story(policy(late=CARRY)).closing()
    story.on(story.report("pc")).release()
    assert story.effect(DrawCohort) == DrawCohort(
        RoundKey(1, 0), RoundKind.TRAIN, invited=2, needed=0, excluded=("pc",), planned_round=1
    )
    story.on(story.drawn("pa", "pb"))
    assert story.effect(PrepareRound).carried[0].factor == 0.5  # (1 + 1) ** -1
    assert story.effect(PrepareRound).total_weight == 30
    story.on(story.prepared())
    fold = story.effect(Fold)
    assert (fold.key, fold.update.key, fold.weight) == (RoundKey(1, 0), RoundKey(0, 0), 10 * 4 // 2)
    story.on(story.report("pa"))
    assert story.round.phase is Phase.CLOSING
    assert [(t.participant, t.weight) for t in story.asked.contributions] == [("pa", 40), ("pc", 20)]


def test_a_participant_drawn_in_spite_of_its_carried_update_counts_once_and_the_update_waits() -> None:
    story = Story(policy(late=CARRY)).closing()
    story.on(story.report("pc")).release()
    story.on(story.drawn("pc", "pd"))
    assert story.effect(PrepareRound).carried == ()
    assert [c.update.participant for c in story.state.carried] == ["pc"]


def test_of_two_carried_updates_of_one_participant_the_older_goes_first() -> None:
    story = Story(policy(late=LatePolicy(LateMode.CARRY, max_staleness=3), rounds=4)).closing()
    older = story.report("pc")
    story.release().open().on(story.report("pa"), story.report("pb"))
    story.on(story.report("pc"), older).release("m2")
    story.on(story.drawn("pa", "pb"))
    assert [str(c.update.key) for c in story.round.carried] == ["1"]
    assert [str(c.update.key) for c in story.state.carried] == ["2"]


def test_carried_updates_alone_may_reach_the_goal() -> None:
    """Buffered asynchronous aggregation: the buffer was full before the first invitation."""
    story = Story(policy(cohort_size=1, over_selection=3, late=CARRY)).training()
    story.on(story.report("pa")).on(story.report("pb")).release()
    assert story.effect(DrawCohort).invited == 0
    story.on(story.drawn()).on(story.prepared())
    assert story.round.phase is Phase.CLOSING
    assert story.round.reason == "the goal of 1 is reached"


def test_an_evaluate_round_takes_no_carried_update() -> None:
    story = Story(policy(late=CARRY, evaluate_every=1)).closing()
    story.on(story.report("pc")).release()
    assert story.effect(DrawCohort) == DrawCohort(
        RoundKey(1, 0), RoundKind.EVALUATE, invited=3, needed=1, excluded=(), planned_round=1
    )
    story.on(story.drawn("pa", "pb", "pc"))
    assert story.round.carried == ()
    assert len(story.state.carried) == 1
