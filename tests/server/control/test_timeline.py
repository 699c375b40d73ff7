from typing import Any

import pytest

from atoll.server.control import MemberSummary, RoundSummary
from atoll.server.control.timeline import StepSpan, slowest_first, step_spans, story, why


def member(name: str = "pa", status: str = "reported", report_s: float | None = 10.0, **fields: Any) -> MemberSummary:
    values: dict[str, object] = {"organisation": "lab", "detail": "", "weight": 5}
    return MemberSummary(name, status=status, report_s=report_s, **(values | fields))  # type: ignore[arg-type]  # the test's


def a_round(*members: MemberSummary, **fields: object) -> RoundSummary:
    values: dict[str, object] = {"phase": "released", "reason": "", "members": members}
    base: dict[str, object] = {"round": 0, "attempt": 0, "kind": "train", "cohort": len(members), "reported": 1}
    base |= {"quorum": 1, "wanted": 1, "total_weight": 1, "opened_at": 1.0, "closed_at": 2.0}
    return RoundSummary(**(base | {"remaining_s": None, "metrics": {}} | values | fields))  # type: ignore[arg-type]


def test_a_members_time_is_cut_into_steps_without_gaps() -> None:
    claims = {"download": 1.0, "fit": 5.0, "upload": 99.0}
    found = step_spans(member(accept_s=0.5, upload_s=8.0, fold_s=12.0, claimed_s=claims))
    assert found == (
        StepSpan("wait", 0.0, 0.5),
        StepSpan("download", 0.5, 1.5),
        StepSpan("fit", 1.5, 6.5),
        StepSpan("work", 6.5, 8.0),
        StepSpan("upload", 8.0, 10.0),
        StepSpan("fold", 10.0, 12.0),
    )


def test_claims_are_cut_to_what_the_server_saw() -> None:
    found = step_spans(member(accept_s=2.0, upload_s=4.0, claimed_s={"download": 1e6, "fit": 1e6}))
    assert [(one.step, one.end_s) for one in found] == [("wait", 2.0), ("download", 4.0), ("upload", 10.0)]


@pytest.mark.parametrize("odd", [{"accept_s": 50.0}, {"upload_s": 50.0}, {"accept_s": 9.0, "upload_s": 1.0}])
def test_times_that_contradict_each_other_still_add_up(odd: dict[str, Any]) -> None:
    found = step_spans(member(**odd))
    assert all(one.start_s < one.end_s for one in found)
    assert [one.start_s for one in found[1:]] == [one.end_s for one in found[:-1]]
    assert found[-1].end_s == 10.0


def test_a_member_that_never_reported_ends_where_its_part_was_decided() -> None:
    late = member(status="timed_out", report_s=None, accept_s=1.0, end_s=30.0)
    assert step_spans(late)[-1] == StepSpan("work", 1.0, 30.0)
    assert step_spans(member(status="invited", report_s=None)) == ()


def test_who_counted_comes_first_the_slowest_before_the_others() -> None:
    quick, slow, gone = member("pa", report_s=1.0), member("pb", report_s=9.0), member("p0", "silent", None)
    assert [one.participant for one in slowest_first(a_round(quick, gone, slow))] == ["pb", "pa", "p0"]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("declined", "it declined"),
        ("failed", "failed"),
        ("silent", "connection"),
        ("timed_out", "had not taken the task"),
    ],
)
def test_why_is_said_in_plain_words_with_the_reason(status: str, said: str) -> None:
    text = why(member(status=status, report_s=None, detail="on battery"))
    assert said in text
    assert text.endswith(": on battery")


def test_one_that_counted_needs_no_reason() -> None:
    assert why(member()) == ""


def test_the_story_tells_where_the_time_went_and_who_was_slow() -> None:
    slow = member("pb", report_s=9.0, accept_s=0.1, claimed_s={"fit": 8.0})
    item = a_round(member(report_s=1.0), slow, phases_s={"draw": 1.0, "collect": 9.0}, reason="all are in")
    assert list(story(item)) == [
        "1 s from the invitation to the close; 10 s in all: draw 1 s, collect 9 s",
        "it ended because all are in",
        "slowest: pb after 9 s, most of it fit (8 s); the median is 5 s",
    ]
