"""Events of members of an open round."""

import pytest

from atoll.server.rounds import (
    Accepted,
    DeadlinePassed,
    Declined,
    Fold,
    MemberFailed,
    MemberStatus,
    Patience,
    Phase,
    Receipt,
    RecordMember,
    Rejected,
    Reported,
    RoundKey,
    RunPolicy,
    Situation,
    Started,
    Stop,
    StragglerPolicy,
    Verdict,
    Weighting,
    WentSilent,
)
from tests.server.rounds.scenario import CARRY, Story, policy


def test_an_invited_member_accepts_and_trains_and_says_so_twice() -> None:
    story = Story().open()
    story.on(Accepted(story.key, "pa"))
    assert story.status("pa") is MemberStatus.TRAINING
    assert story.ignores(Accepted(story.key, "pa"))


def test_a_report_is_folded_with_its_integer_weight_and_acknowledged() -> None:
    story = Story().training()
    report = story.report("pa", weight=7)
    story.on(report)
    assert story.status("pa") is MemberStatus.REPORTED
    assert report.update is not None
    assert story.effects == (
        Fold(story.key, report.update, 28),
        Receipt(story.key, "pa", Verdict.COUNTED, ""),
    )


def test_a_report_counts_without_an_acceptance_for_that_message_may_be_lost() -> None:
    story = Story().open()
    assert story.on(story.report("pa")).round.roster.reported == 1


def test_no_clock_decides_for_only_the_deadline_s_event_closes_a_round() -> None:
    story = Story().training()
    story.now = story.round.deadline_at + 1e6
    story.on(story.report("pa"))
    story.now = 0.0
    story.on(story.report("pb"))
    assert story.round.roster.reported == 2


def test_the_same_report_again_gets_the_same_receipt_and_counts_once() -> None:
    story = Story().training()
    story.on(story.report("pa"))
    assert story.ignores(story.report("pa"))
    assert story.effects == (Receipt(story.key, "pa", Verdict.COUNTED, ""),)


def test_another_report_after_an_acknowledged_one_is_refused() -> None:
    story = Story().training()
    story.on(story.report("pa"))
    assert story.ignores(story.report("pa", digest="other"))
    assert story.effect(Receipt).verdict is Verdict.CONFLICT
    assert story.status("pa") is MemberStatus.REPORTED


def test_a_strangers_report_is_refused() -> None:
    story = Story().training()
    assert story.ignores(story.report("pz"))
    assert story.effects == (Receipt(story.key, "pz", Verdict.REJECTED, "not a member of round 1"),)


def test_a_stranger_is_otherwise_ignored() -> None:
    story = Story().training()
    assert story.ignores(Accepted(story.key, "pz"))
    assert story.ignores(Declined(story.key, "pz", "no"))
    assert story.ignores(MemberFailed(story.key, "pz", "no"))
    assert story.ignores(WentSilent(story.key, "pz", "no"))
    assert story.ignores(Rejected(story.key, "pz", "no"))
    assert story.effects == ()


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (11, "weight 11: at most the 10 examples declared at check-in count"),
        (0, "weight 0: report at least 1 example, or decline"),
    ],
)
def test_a_report_of_an_impossible_weight_is_rejected_with_the_reason(weight: int, reason: str) -> None:
    story = Story().training()
    story.on(story.report("pa", weight=weight))
    assert (story.status("pa"), story.member("pa").detail) == (MemberStatus.REJECTED, reason)
    assert story.effects == (Receipt(story.key, "pa", Verdict.REJECTED, reason),)


def test_a_train_report_without_an_update_is_rejected() -> None:
    story = Story().training()
    story.on(Reported(story.key, "pa", None, 10))
    assert story.status("pa") is MemberStatus.REJECTED


def test_an_evaluation_with_an_update_is_rejected() -> None:
    story = Story(policy(rounds=0, final_evaluation=True)).open()
    train = Story().open().report("pa")
    story.on(train)
    assert story.status("pa") is MemberStatus.REJECTED


def test_an_evaluation_counts_its_examples_whatever_was_declared_for_training() -> None:
    story = Story(policy(rounds=0, final_evaluation=True)).open()
    story.on(story.report("pa", weight=500)).on(story.report("pb", weight=0))
    assert [(t.participant, t.weight, t.metrics) for t in story.asked.contributions] == [
        ("pa", 500, (("accuracy", 0.5),)),
        ("pb", 0, (("accuracy", 0.5),)),
    ]


def test_in_a_uniform_mean_every_update_weighs_the_same() -> None:
    story = Story(RunPolicy(1, StragglerPolicy(2), weighting=Weighting.UNIFORM)).open("pa", "pb")
    story.on(story.report("pa", weight=99)).on(story.report("pb", weight=1))
    assert [t.weight for t in story.asked.contributions] == [4, 4]


def test_at_the_goal_the_round_closes_and_the_rest_are_stopped_as_over_selected() -> None:
    story = Story().closing()
    assert story.stands() is Situation.CLOSING
    assert story.status("pc") is MemberStatus.OVER_SELECTED
    assert story.member("pc").detail == "the goal of 2 is reached"
    assert story.effect(Stop) == Stop(story.key, ("pc",), "the goal of 2 is reached")
    assert [t.participant for t in story.asked.contributions] == ["pa", "pb"]


def test_where_late_reports_are_carried_the_rest_go_on() -> None:
    story = Story(policy(late=CARRY)).closing()
    assert story.status("pc") is MemberStatus.OVER_SELECTED
    assert "Stop" not in story.kinds()


def test_waiting_for_all_does_not_cut_at_the_goal() -> None:
    story = Story(policy(patience=Patience.ALL)).closing()
    assert story.stands() is Situation.OPEN
    story.on(story.report("pc"))
    assert story.stands() is Situation.CLOSING
    assert len(story.asked.contributions) == 3


def test_where_the_draw_is_secret_a_round_lasts_until_its_deadline_whoever_is_in_it() -> None:
    """The time of the next model must not reveal who reported, left, or was never drawn."""
    for members in ((), ("pa",), ("pa", "pb", "pc")):
        story = Story(policy(patience=Patience.DEADLINE, quorum=0)).on(Started())
        story.on(story.drawn(*members)).on(story.prepared())
        for name in members[:2]:
            story.on(story.report(name))
        story.on(*(Declined(story.key, name, "on battery") for name in members[2:]))
        assert story.stands() is Situation.OPEN
        story.on(DeadlinePassed(story.key))
        assert story.stands() is Situation.CLOSING
        assert [t.participant for t in story.asked.contributions] == list(members[:2])


@pytest.mark.parametrize("unreported", [True, False])
def test_a_refused_report_may_take_its_place_with_nothing(unreported: bool) -> None:
    """The content of an update must never decide whether another one is summed."""
    calls = []
    for wrong in (False, True):
        story = Story(policy(over_selection=1.5, refused_count=True)).training()
        if not wrong or not unreported:
            story.on(story.report("pa"))
        if wrong:
            story.on(Rejected(story.key, "pa", "not finite", unreported=unreported))
        assert story.stands() is Situation.OPEN
        story.on(story.report("pb"))
        assert story.stands() is Situation.CLOSING
        assert story.status("pc") is MemberStatus.OVER_SELECTED
        calls.append([t.participant for t in story.asked.contributions])
    assert calls == [["pa", "pb"], ["pb"]]


def test_a_refused_report_that_counts_is_not_missed_by_the_quorum_either() -> None:
    story = Story(policy(quorum=2, refused_count=True)).training("pa", "pb")
    story.on(story.report("pa"), Rejected(story.key, "pb", "not finite"))
    assert story.stands() is Situation.CLOSING
    story.on(Rejected(story.key, "pa", "damaged"))
    assert story.stands() is Situation.CLOSING
    assert story.asked.contributions == ()


@pytest.mark.parametrize(
    ("leave", "status"),
    [
        (Declined(RoundKey(0, 0), "pb", "on battery"), MemberStatus.DECLINED),
        (MemberFailed(RoundKey(0, 0), "pb", "on battery"), MemberStatus.FAILED),
        (Rejected(RoundKey(0, 0), "pb", "on battery"), MemberStatus.REJECTED),
        (WentSilent(RoundKey(0, 0), "pb", "on battery"), MemberStatus.SILENT),
    ],
)
def test_a_round_without_outstanding_members_closes_with_its_quorum(
    leave: Declined | MemberFailed | Rejected | WentSilent, status: MemberStatus
) -> None:
    story = Story().training("pa", "pb")
    story.on(story.report("pa")).on(leave)
    assert (story.status("pb"), story.member("pb").detail) == (status, "on battery")
    assert story.stands() is Situation.CLOSING
    assert story.round.reason == "no member is outstanding"


def test_when_the_quorum_is_out_of_reach_the_attempt_is_abandoned_before_its_deadline() -> None:
    story = Story(policy(quorum=2)).training("pa", "pb", "pc")
    story.on(Declined(story.key, "pa", "on battery"))
    assert story.stands() is Situation.OPEN
    story.on(MemberFailed(story.key, "pb", "out of memory"))
    assert story.stands() is Situation.ABANDONED
    assert story.round.reason == "quorum 2 can no longer be reached: only 1 member could report"
    assert story.effect(Stop).participants == ("pc",)
    assert story.status("pc") is MemberStatus.STOPPED


def test_a_silent_member_is_waited_for_while_the_quorum_needs_it() -> None:
    story = Story(policy(quorum=2)).training("pa", "pb")
    story.on(story.report("pa"), WentSilent(story.key, "pb", "connection lost"))
    assert story.stands() is Situation.OPEN
    story.on(Accepted(story.key, "pb"))
    assert story.status("pb") is MemberStatus.TRAINING
    assert story.member("pb").detail == ""


def test_a_silent_member_that_comes_back_may_report() -> None:
    story = Story(policy(quorum=2)).training("pa", "pb")
    story.on(WentSilent(story.key, "pb", "connection lost"), story.report("pb"))
    assert story.status("pb") is MemberStatus.REPORTED


def test_a_member_that_reported_does_not_fall_silent_fail_or_decline_any_more() -> None:
    story = Story().training()
    story.on(story.report("pa"))
    assert story.ignores(WentSilent(story.key, "pa", "gone"))
    assert story.ignores(MemberFailed(story.key, "pa", "gone"))
    assert story.ignores(Declined(story.key, "pa", "gone"))


def test_a_member_that_failed_may_not_report_after_all() -> None:
    story = Story().training()
    story.on(MemberFailed(story.key, "pa", "out of memory"))
    assert story.ignores(story.report("pa"))
    assert story.effect(Receipt).detail == "the member has failed already: out of memory"


def test_a_report_found_unusable_does_not_count_any_more() -> None:
    story = Story().training()
    story.on(story.report("pa"), Rejected(story.key, "pa", "value 1e9 is beyond 32"))
    assert (story.status("pa"), story.round.roster.reported) == (MemberStatus.REJECTED, 0)
    assert story.effects == (Receipt(story.key, "pa", Verdict.REJECTED, "value 1e9 is beyond 32"),)


def test_a_report_found_unusable_while_closing_leaves_the_sum() -> None:
    story = Story().closing()
    story.on(Rejected(story.key, "pb", "not finite"))
    assert story.stands() is Situation.CLOSING
    assert [t.participant for t in story.asked.contributions] == ["pa"]


def test_rejections_while_closing_may_cost_the_quorum() -> None:
    story = Story(policy(quorum=2)).closing()
    story.on(Rejected(story.key, "pb", "not finite"))
    assert story.stands() is Situation.ABANDONED
    assert story.round.reason == "quorum 2 can no longer be reached: 1 report left after rejections"
    assert story.status("pa") is MemberStatus.STOPPED


def test_rejecting_while_closing_a_member_that_does_not_count_changes_nothing() -> None:
    story = Story().closing()
    assert story.ignores(Rejected(story.key, "pc", "not finite"))
    assert story.ignores(Rejected(story.key, "pz", "not finite"))


@pytest.mark.parametrize("opened", [False, True])
def test_a_carried_update_found_unusable_leaves_the_round_that_took_it(opened: bool) -> None:
    story = Story(policy(late=CARRY)).closing()
    story.on(story.report("pc")).release()
    story.on(story.drawn("pa", "pb"))
    if opened:
        story.on(story.prepared())
    story.on(Rejected(RoundKey(0, 0), "pc", "not finite"))
    assert story.round.carried == ()
    record = story.effect(RecordMember)
    assert (record.key, record.member.status) == (RoundKey(0, 0), MemberStatus.REJECTED)


def test_at_the_deadline_the_round_closes_with_its_quorum_and_the_rest_have_timed_out() -> None:
    story = Story().training()
    story.on(story.report("pa"), WentSilent(story.key, "pb", "connection lost"), DeadlinePassed(story.key))
    assert story.round.phase is Phase.CLOSING
    assert story.round.reason == "the deadline has passed"
    assert story.status("pc") is MemberStatus.TIMED_OUT
    assert story.status("pb") is MemberStatus.SILENT
    assert story.effect(Stop).participants == ("pb", "pc")


def test_at_the_deadline_without_a_quorum_the_attempt_is_abandoned() -> None:
    story = Story(policy(quorum=2)).training()
    story.on(story.report("pa"), DeadlinePassed(story.key))
    assert story.stands() is Situation.ABANDONED
    assert story.round.reason == "quorum 2 was missed at the deadline: 1 report counted"
    assert story.status("pb") is MemberStatus.TIMED_OUT
    assert story.status("pa") is MemberStatus.STOPPED
    assert story.member("pa").detail.endswith("report discarded")


def test_a_refused_upload_takes_nothing_back_that_was_acknowledged() -> None:
    """A second upload, sent after the report, may hold anything."""
    story = Story().training()
    story.on(story.report("pa"))
    assert story.ignores(Rejected(story.key, "pa", "not finite", unreported=True))
    story.on(Rejected(story.key, "pb", "not finite", unreported=True))
    assert (story.status("pa"), story.status("pb")) == (MemberStatus.REPORTED, MemberStatus.REJECTED)


def test_a_refused_upload_does_not_shrink_a_set_that_is_being_summed() -> None:
    story = Story().closing()
    assert story.ignores(Rejected(story.key, "pa", "not finite", unreported=True))
