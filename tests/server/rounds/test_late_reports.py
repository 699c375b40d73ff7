"""Reports that arrive after their round has closed."""

import pytest

from atoll.server.rounds import (
    Accepted,
    CancelRequested,
    DeadlinePassed,
    Declined,
    DrawCohort,
    DropSpools,
    LateMode,
    LatePolicy,
    MemberFailed,
    MemberStatus,
    Receipt,
    RecordMember,
    Rejected,
    Reported,
    RoundKey,
    Situation,
    Stop,
    Verdict,
    WentSilent,
    wants,
)
from tests.server.rounds.scenario import CARRY, Story, policy

FIRST = RoundKey(0, 0)


def test_a_late_report_is_refused_with_the_reason_on_record() -> None:
    story = Story().closing()
    story.on(story.report("pc"))
    reason = "reported after the round was over (the goal of 2 is reached)"
    assert (story.status("pc"), story.member("pc").detail) == (MemberStatus.LATE, reason)
    assert story.effects == (
        RecordMember(FIRST, story.member("pc")),
        Receipt(FIRST, "pc", Verdict.LATE, reason),
    )


def test_a_late_report_after_the_release_amends_the_record_of_its_round() -> None:
    story = Story().closing()
    late = story.report("pc")
    story.release().on(late)
    assert story.stands() is Situation.CREATED
    assert story.effect(RecordMember).member.status is MemberStatus.LATE
    assert story.effect(Receipt).verdict is Verdict.LATE


def test_a_late_report_that_is_repeated_gets_the_same_receipt() -> None:
    story = Story().closing()
    story.on(story.report("pc"))
    assert story.ignores(story.report("pc"))
    assert story.effect(Receipt).verdict is Verdict.LATE


def test_a_late_report_is_carried_and_acknowledged_where_the_policy_says_so() -> None:
    story = Story(policy(late=CARRY)).closing()
    report = story.report("pc", weight=4)
    story.on(report)
    assert [c.update for c in story.state.carried] == [report.update]
    assert story.effect(Receipt).verdict is Verdict.CARRIED
    member = story.effect(RecordMember).member
    assert (member.status, member.update, member.reported_weight) == (MemberStatus.LATE, report.update, 4)
    assert len(story.asked.contributions) == 2, "it must not join the sum that is being taken"


@pytest.mark.parametrize("when", ["waiting", "taken", "counted"])
def test_a_carried_report_that_is_repeated_gets_the_same_receipt(when: str) -> None:
    story = Story(policy(late=CARRY, rounds=3)).closing()
    report = story.report("pc")
    story.on(report)
    if when != "waiting":
        story.release().open("pa", "pb")
    if when == "counted":
        story.on(story.report("pa")).release("m2")
    assert story.ignores(report)
    assert story.effect(Receipt).verdict is Verdict.CARRIED
    assert len(story.state.carried) == (1 if when == "waiting" else 0)


def test_another_report_after_a_carried_one_is_refused() -> None:
    story = Story(policy(late=CARRY)).closing()
    story.on(story.report("pc"))
    assert story.ignores(story.report("pc", digest="other"))
    assert story.effect(Receipt).verdict is Verdict.CONFLICT


def test_a_counted_report_that_is_repeated_after_the_release_is_acknowledged_again() -> None:
    """Its receipt was lost in the server's crash; the participant must not conclude that its work was lost."""
    story = Story().closing()
    report = story.report("pa")
    story.release()
    assert story.ignores(report)
    assert story.effect(Receipt).verdict is Verdict.COUNTED


def test_a_late_report_with_a_flaw_is_rejected() -> None:
    story = Story(policy(late=CARRY)).closing()
    story.on(story.report("pc", weight=11))
    assert story.status("pc") is MemberStatus.REJECTED
    assert story.state.carried == ()


def test_a_late_report_while_a_draw_is_under_way_changes_what_is_drawn() -> None:
    story = Story(policy(late=CARRY)).closing()
    late = story.report("pc")
    story.release().on(late)
    assert story.effect(DrawCohort).excluded == ("pc",)


def test_a_report_too_stale_to_be_carried_is_refused() -> None:
    story = Story(policy(late=LatePolicy(LateMode.CARRY, max_staleness=0), rounds=3)).closing()
    late = story.report("pc")
    story.release().on(late)
    assert story.effect(Receipt).verdict is Verdict.LATE
    assert story.state.carried == ()


def test_a_report_of_a_round_long_over_is_refused() -> None:
    story = Story(policy(rounds=4)).closing()
    late = story.report("pc")
    story.release().open().on(story.report("pa"), story.report("pb")).release("m2")
    assert story.ignores(late)
    assert story.effects == (Receipt(FIRST, "pc", Verdict.LATE, "round 1 is over"),)


def test_a_carried_update_that_no_round_took_in_time_is_dropped_with_the_reason() -> None:
    story = Story(policy(late=CARRY, rounds=4)).closing()
    story.on(story.report("pc")).release()
    story.open("pa", "pc").on(story.report("pa"), story.report("pc")).release("m2")
    record = story.effect(RecordMember)
    assert (record.key, record.member.status, record.member.declared_weight) == (FIRST, MemberStatus.LATE, 10)
    assert record.member.detail == "carried, but no round could take it within 1 released models"
    assert story.state.carried == ()
    assert story.effect(DropSpools).keep == ()


def test_the_round_that_took_a_carried_update_is_on_record() -> None:
    story = Story(policy(late=CARRY)).closing()
    story.on(story.report("pc")).release().open("pa", "pb").on(story.report("pa")).release("m2")
    record = story.effect(RecordMember)
    assert (record.key, record.member.detail) == (FIRST, "late; counted in round 2 with staleness 1")


def test_reports_of_an_abandoned_attempt_are_carried_to_the_next_at_full_weight() -> None:
    """No model was released in between, so they are not stale."""
    story = Story(policy(quorum=2, late=CARRY)).training()
    story.on(story.report("pa"), DeadlinePassed(story.key))
    assert story.status("pa") is MemberStatus.STOPPED
    late = story.report("pb")
    story.on(late)
    assert story.effect(Receipt).verdict is Verdict.CARRIED
    story.retry()
    assert story.effect(DrawCohort).excluded == ("pa", "pb")
    story.on(story.drawn("pc")).on(story.prepared())
    assert [(t.participant, t.weight) for t in story.asked.contributions] == [("pa", 40), ("pb", 40)]


def test_carried_updates_of_an_abandoned_attempt_go_back_to_waiting() -> None:
    story = Story(policy(cohort_size=3, quorum=3, late=CARRY, rounds=3)).training("pa", "pb", "pc", "pd", "pe")
    story.on(story.report("pa"), story.report("pb"), story.report("pc"), story.report("pd")).release()
    story.open("pa", "pb").on(DeadlinePassed(story.key))
    assert story.stands() is Situation.ABANDONED
    assert [(c.update.participant, c.staleness, c.factor) for c in story.state.carried] == [("pd", 0, 1.0)]


def test_a_carried_update_found_unusable_while_it_waits_is_dropped() -> None:
    story = Story(policy(late=CARRY)).closing()
    story.on(story.report("pc"))
    story.on(Rejected(FIRST, "pc", "not finite"))
    assert story.state.carried == ()
    assert story.status("pc") is MemberStatus.REJECTED
    assert story.effect(Receipt).verdict is Verdict.REJECTED


def test_a_sum_that_has_been_taken_keeps_an_update_found_unusable_too_late() -> None:
    story = Story().aggregated()
    assert story.ignores(Rejected(FIRST, "pa", "not finite"))


def test_a_member_that_accepts_too_late_is_stopped_unless_late_reports_are_carried() -> None:
    dropping, carrying = Story().closing(), Story(policy(late=CARRY)).closing()
    assert dropping.ignores(Accepted(FIRST, "pc"))
    assert dropping.effects == (Stop(FIRST, ("pc",), "the round is closed"),)
    assert carrying.ignores(Accepted(FIRST, "pc"))
    assert carrying.effects == ()


def test_other_late_news_is_ignored() -> None:
    story = Story().closing()
    for event in (Declined(FIRST, "pc", "no"), MemberFailed(FIRST, "pc", "no"), WentSilent(FIRST, "pc", "no")):
        assert story.ignores(event)
    story.release()
    for event in (Declined(FIRST, "pc", "no"), MemberFailed(FIRST, "pc", "no"), WentSilent(FIRST, "pc", "no")):
        assert story.ignores(event)


def test_a_run_that_has_ended_takes_no_report_but_answers() -> None:
    story = Story(policy(late=CARRY)).training()
    report = story.report("pa")
    story.on(report, CancelRequested("enough"))
    for late in (report, story.report("pb"), Reported(FIRST, "pz", None, 1)):
        assert story.ignores(late)
        assert story.effect(Receipt).verdict in (Verdict.LATE, Verdict.REJECTED)


def test_a_report_counted_in_an_ended_run_is_acknowledged_again() -> None:
    story = Story(policy(rounds=1)).closing()
    report = story.report("pa")
    assert story.release().stands() is Situation.ENDED
    assert story.ignores(report)
    assert story.effect(Receipt).verdict is Verdict.COUNTED


def test_wants_tells_whether_a_report_would_be_taken() -> None:
    story = Story(policy(late=CARRY)).open()
    assert wants(story.state, FIRST, "pa")
    assert not wants(story.state, FIRST, "pz")
    assert not wants(story.state, RoundKey(1, 0), "pa")
    story.on(story.report("pa"), story.report("pb"))
    assert not wants(story.state, FIRST, "pa")
    assert wants(story.state, FIRST, "pc")
    story.on(CancelRequested("enough"))
    assert not wants(story.state, FIRST, "pc")


def test_dropping_late_reports_wants_none() -> None:
    assert not wants(Story().closing().state, FIRST, "pc")
