from atoll.server.control import MemberSummary, RoundSummary
from atoll.server.report.summary import MAX_ROWS, absences, attendance, presence


def member(name: str, status: str = "reported", detail: str = "", report_s: float | None = 1.0) -> MemberSummary:
    return MemberSummary(name, "lab", status, detail, 10, report_s)


def a_round(number: int, *members: MemberSummary, attempt: int = 0, kind: str = "train") -> RoundSummary:
    return RoundSummary(number, attempt, kind, "released", "", 1, 1, 1, 1, 1, None, None, None, {}, members)


def test_reasons_are_counted_by_kind_and_words() -> None:
    late = member("pa", "timed_out", "too slow")
    found = absences([a_round(0, late, member("pb", "declined", "battery")), a_round(1, late, member("pb"))])
    assert [(item.status, item.detail, item.times) for item in found] == [
        ("timed_out", "too slow", 2),
        ("declined", "battery", 1),
    ]
    assert (found[0].participants, found[0].rounds) == ("pa", "1, 2")


def test_many_names_are_cut() -> None:
    found = absences([a_round(0, *(member(f"p{index}", "failed") for index in range(9)))])
    assert found[0].participants.endswith("and 3 more")


def test_attendance_counts_each_participant() -> None:
    rows = attendance([a_round(0, member("pb"), member("pa", "failed")), a_round(1, member("pb", report_s=3.0))])
    assert [(row.participant, row.invited, row.reported, row.report_s) for row in rows] == [
        ("pa", 1, 0, None),
        ("pb", 2, 2, 2.0),
    ]


def test_presence_marks_who_was_not_drawn() -> None:
    grid = presence([a_round(0, member("pa"), member("pb", "failed")), a_round(1, member("pb"))])
    assert grid.rows == ("pa", "pb")
    assert grid.cells == (("reported", ""), ("failed", "reported"))


def test_presence_keeps_those_who_missed_most() -> None:
    crowd = [member(f"p{index:03}", "failed" if index % 2 else "reported") for index in range(2 * MAX_ROWS)]
    grid = presence([a_round(0, *crowd)])
    assert len(grid.rows) == MAX_ROWS
    assert {cells[0] for cells in grid.cells} == {"failed"}
