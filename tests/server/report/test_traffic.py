"""Bytes that a run of silos has sent, compared with the formula of plain data parallelism."""

from __future__ import annotations

import pytest

from atoll.server.control import MemberSummary, RoundSummary, RunDetail, RunSummary
from atoll.server.report import render
from atoll.server.report.traffic import traffic_of
from atoll.text.figures import in_bytes

ELEMENTS = 1000
JOB = "[training]\ninner_steps = 5\n"


def a_round(number: int, statuses: tuple[str, ...], phase: str = "released") -> RoundSummary:
    members = tuple(
        MemberSummary(f"p{at}", "lab", status, "", 10, 0.2, payload_bytes=4000) for at, status in enumerate(statuses)
    )
    counted = sum(member.counted for member in members)
    metrics = {"server/loss": 3.0 - number}
    times = (1000.0 + number, 1000.5 + number)
    return RoundSummary(
        number, 0, "train", phase, "", len(members), counted, 1, 2, 20, *times, None, metrics, members, version=number
    )


def detail(job: str, *rounds: RoundSummary) -> RunDetail:
    return RunDetail(RunSummary("rabc", "text", "finished", "", 2, 2, 1000.0, 1010.0, "ab"), rounds, 2, job)


def test_bytes_are_added_up_from_model_to_model() -> None:
    found = traffic_of(detail(JOB, a_round(0, ("reported",) * 4), a_round(1, ("reported", "reported", "late"))), 1000)
    assert found.sent == (4 * 4000, 7 * 4000), "an update that came late was sent too"
    assert found.plain == (2 * 3 * 4 * ELEMENTS * 5, 2 * (3 + 1) * 4 * ELEMENTS * 5)


def test_an_attempt_that_was_abandoned_has_sent_too() -> None:
    found = traffic_of(detail(JOB, a_round(0, ("reported", "late"), "abandoned"), a_round(0, ("reported",) * 2)), 1000)
    assert found.sent == (4 * 4000,)
    assert found.plain == (2 * 1 * 4 * ELEMENTS * 5,)


@pytest.mark.parametrize("job", ["", "[training]\ninner_steps = 2.5\n", "[training]\nepochs = 2\n"])
def test_a_job_that_does_not_name_its_steps_is_not_compared(job: str) -> None:
    found = detail(job, a_round(0, ("reported",) * 4), a_round(1, ("reported",) * 4))
    assert traffic_of(found, ELEMENTS).plain == ()
    assert "What it sent" not in render(found, now=0.0, elements=ELEMENTS)


def test_the_page_says_the_formula_and_both_sums() -> None:
    found = detail(JOB, a_round(0, ("reported",) * 4), a_round(1, ("reported",) * 4))
    page = render(found, now=0.0, elements=ELEMENTS)
    assert "What it sent" in page
    assert "Participants sent 32 kB" in page
    assert "have had them send 240 kB, 8 times as much" in " ".join(page.split())
    assert "N = 1,000 elements" in page


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (4.1e6, "4.1 MB"), (1.95e9, "1.95 GB"), (2e12, "2 TB")]
)
def test_units(value: float, text: str) -> None:
    assert in_bytes(value) == text
