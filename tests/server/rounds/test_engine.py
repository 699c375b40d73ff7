"""Effects that the engine asks for again after a restart."""

from dataclasses import replace

import pytest

from atoll.server.rounds import (
    Accepted,
    BudgetSpent,
    CancelRequested,
    DeadlinePassed,
    Effect,
    Fold,
    Invite,
    PauseRequested,
    ResumeRequested,
    RoundKey,
    StartDeadline,
    Started,
    StartRetry,
    WentSilent,
    resume,
)
from tests.server.rounds.scenario import CARRY, Story, policy


def kinds(effects: tuple[Effect, ...]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def test_each_situation_resumes_what_it_waits_for() -> None:
    sampled = Story().on(Started())
    sampled.on(sampled.drawn("pa", "pb"))
    first = RoundKey(0, 0)
    expected = [
        (Story(), []),
        (Story().on(Started()), ["DrawCohort"]),
        (sampled, ["PrepareRound"]),
        (Story().open(), ["Invite", "StartDeadline"]),
        (Story().closing(), ["Aggregate"]),
        (Story().aggregated(), ["ChargeAndStore"]),
        (Story().charged(), ["Publish"]),
        (Story().closing().release(), ["DropSpools", "DrawCohort"]),
        (Story().open().on(DeadlinePassed(first)), ["DropSpools", "StartRetry"]),
        (Story().on(Started(), PauseRequested()), []),
        (Story().closing().on(PauseRequested()).release(), ["DropSpools"]),
        (Story().on(Started(), BudgetSpent(first, "no")), []),
        (Story().aggregated().on(BudgetSpent(first, "no")), []),
        (Story().on(CancelRequested("enough")), ["Finish"]),
        (Story().open().on(CancelRequested("enough")), ["DropSpools", "Finish"]),
    ]
    assert [kinds(resume(story.state, 0.0)) for story, _ in expected] == [names for _, names in expected]


def test_what_is_resumed_is_what_the_last_step_asked_for() -> None:
    for story in (Story().on(Started()), Story().closing(), Story().aggregated(), Story().charged()):
        assert resume(story.state, story.now)[-1] == story.effects[-1]


def test_an_open_round_folds_again_what_was_reported_and_invites_who_may_yet_report() -> None:
    story = Story(policy(cohort_size=3, late=CARRY)).training("pa", "pb", "pc", "pd")
    report = story.report("pb")
    story.on(report, WentSilent(story.key, "pc", "connection lost"))
    fold, invite, _ = resume(story.state, story.now)
    assert report.update is not None
    assert fold == Fold(story.key, report.update, 40)
    assert invite == Invite(story.key, ("pa", "pc", "pd"))


@pytest.mark.parametrize(
    ("now", "remaining_s"),
    [(0.0, 30.0), (110.0, 25.0), (135.0, 0.0), (1e9, 0.0)],
    ids=["clock jumped back", "in time", "at the deadline", "clock jumped ahead"],
)
def test_the_deadline_keeps_its_time_and_no_clock_jump_makes_it_longer_than_the_window(
    now: float, remaining_s: float
) -> None:
    story = Story().on(Started())
    story.now = 103.0
    story.on(story.drawn("pa", "pb"))
    story.now = 105.0
    prepared = story.prepared()
    story.on(prepared)
    assert prepared.deadline_at == 135.0
    deadline = resume(story.state, now)[-1]
    assert deadline == StartDeadline(story.key, 135.0, remaining_s)


def test_resumed_at_the_instant_of_its_opening_a_round_has_its_whole_window() -> None:
    """This happens in a simulation; the difference of epoch seconds is rounded, which would move the deadline."""
    story = Story().on(Started())
    story.now = 1_704_067_200.1
    story.on(story.drawn("pa", "pb"))
    prepared = replace(story.prepared(), window_s=0.3, deadline_at=story.now + 0.3)
    story.on(prepared)
    assert prepared.deadline_at - story.now != 0.3
    assert resume(story.state, story.now)[-1] == StartDeadline(story.key, prepared.deadline_at, 0.3)


@pytest.mark.parametrize(("later", "delay_s"), [(-1e6, 5.0), (0.0, 5.0), (2.0, 3.0), (1e6, 0.0)])
def test_a_retry_keeps_its_time_and_no_clock_jump_makes_it_longer_than_the_delay(later: float, delay_s: float) -> None:
    story = Story().open().on(DeadlinePassed(RoundKey(0, 0)))
    assert resume(story.state, story.now + later)[-1] == StartRetry(story.key, delay_s)


def test_after_a_pause_the_draw_is_asked_for_with_what_has_come_in_meanwhile() -> None:
    story = Story(policy(late=CARRY)).closing().on(PauseRequested())
    late = story.report("pc")
    story.release().on(late, Accepted(RoundKey(0, 0), "pc"))
    assert resume(story.state, story.now)[-1].__class__.__name__ == "DropSpools"
    story.on(ResumeRequested())
    assert resume(story.state, story.now)[-1] == story.effects[-1]
