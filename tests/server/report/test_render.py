import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest

from atoll.server.control import MemberSummary, RoundSummary, RunDetail, RunSummary
from atoll.server.report import render

pytestmark = pytest.mark.slow

RUN = RunSummary("rabc", "digits & more <b>", "finished", "", 2, 2, 1000.0, 1010.0, "ab")


def a_round(number: int, members: tuple[MemberSummary, ...] = (), **fields: object) -> RoundSummary:
    values: dict[str, object] = {
        "round": number,
        "attempt": 0,
        "kind": "train",
        "phase": "released",
        "reason": "all reports are in",
        "cohort": len(members),
        "reported": sum(member.counted for member in members),
        "quorum": 1,
        "wanted": 2,
        "total_weight": 20,
        "opened_at": 1000.0 + number,
        "closed_at": 1000.5 + number,
        "remaining_s": None,
        "metrics": {"server/accuracy": 0.5 + number / 10, "eval/accuracy": 0.4, "train/loss": 1.0},
        "members": members,
        "version": number,
    }
    return RoundSummary(**(values | fields))  # type: ignore[arg-type]  # keyword arguments of the test


def members(*statuses: str) -> tuple[MemberSummary, ...]:
    return tuple(
        MemberSummary(f"p{index}", "lab", status, "" if status == "reported" else f"it {status}", 10, 0.2)
        for index, status in enumerate(statuses)
    )


DETAIL = RunDetail(
    RUN,
    (a_round(0, members("reported", "timed_out")), a_round(1, members("reported", "reported"))),
    2,
    'name = "<script>"',
)


@cache
def usual_page() -> str:
    """The report of ``DETAIL``."""
    return render(DETAIL, now=2000.0)


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.targets: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "xlink:href", "srcset", "data", "action"}:
                self.targets.append(value or "")
            if name == "id":
                self.ids.append(value or "")


def parsed(page: str) -> Links:
    links = Links()
    links.feed(page)
    return links


def test_the_project_stands_beside_the_run() -> None:
    def project_of(name: str) -> str:
        page = render(RunDetail(replace(RUN, project=name), (), 0, ""), now=1020.0)
        found = re.search(r'<span class="id">rabc</span>(.*?) · submitted', page)
        assert found is not None
        return found[1]

    assert project_of("cardio") == " · project cardio"
    assert project_of("default") == project_of("") == "", "a server of one team knows no projects"


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = usual_page()
    links = parsed(page)
    assert all(target.startswith("#") for target in links.targets)
    assert not {"script", "link", "img", "iframe", "object"} & set(links.tags)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", page))
    assert "@import" not in page
    assert len(page) < 200_000


def test_ids_are_unique_and_internal_references_resolve() -> None:
    links = parsed(usual_page())
    assert len(links.ids) == len(set(links.ids))
    assert {target.removeprefix("#") for target in links.targets} <= set(links.ids)


def test_what_came_from_others_is_escaped() -> None:
    hostile = '$x_{"><img src=x>'
    detail = RunDetail(RUN, (a_round(0, metrics={hostile: 1.0}, reason="<img src=y>"),), 0, "<img src=z>")
    links = parsed(render(detail, now=0.0))
    assert "img" not in links.tags


def test_the_figures_and_reasons_are_there() -> None:
    page = usual_page()
    assert "0.6" in page
    assert "tested by the server" in page
    assert "it timed_out" in page
    assert "timed out (1)" in page
    assert page.count("<svg ") == 5
    assert "The slowest round: 1" in page
    assert "1970-01-01 00:33:20 UTC" in page


def test_colours_follow_the_page() -> None:
    page = usual_page()
    assert "prefers-color-scheme: dark" in page
    assert "currentColor" in page
    assert not re.search(r"#0000[0-9a-f]{2}\b", page), "a stand-in colour was not replaced"


def test_the_same_run_gives_the_same_page() -> None:
    assert render(DETAIL, now=2000.0) == usual_page()


@pytest.mark.parametrize("rounds", [(), (a_round(0, opened_at=None, closed_at=None, metrics={}, phase="sampled"),)])
def test_a_run_that_has_hardly_begun(rounds: tuple[RoundSummary, ...]) -> None:
    page = render(RunDetail(RUN, rounds, 0, ""), now=0.0)
    assert "No participant has been invited yet" in page


def test_times_are_left_out_of_a_simulation_in_which_none_passes() -> None:
    rounds = tuple(replace(one, closed_at=one.opened_at) for one in DETAIL.rounds)
    page = render(replace(DETAIL, rounds=rounds, run=replace(RUN, finished_at=RUN.created_at)), now=2000.0)
    for shown in ("time per round", "median round", "whole run"):
        assert shown in usual_page()
        assert shown not in page


def test_a_large_run_stays_small() -> None:
    crowd = members(*(["reported"] * 150))
    detail = RunDetail(RUN, tuple(a_round(number, crowd) for number in range(200)), 150, "")
    page = render(detail, now=0.0)
    assert "60 of 150 participants" in page
    assert len(page) < 600_000


def test_a_round_over_a_part_of_the_model_says_which() -> None:
    part = a_round(2, members("reported"), fragment=1, fragments=3)
    page = render(replace(DETAIL, rounds=(*DETAIL.rounds, part)), now=2000.0)
    assert "<td>train 2/3</td>" in page
    assert page.count("<td>train</td>") == len(DETAIL.rounds)


def test_who_never_counted_is_named_with_the_last_reason() -> None:
    rounds = tuple(a_round(number, members("reported", "failed")) for number in range(2))
    page = render(replace(DETAIL, rounds=rounds), now=2000.0)
    named = 'Never counted: p1 (<span class="id">p1</span>)</strong>'
    assert f"{named}, missing from 2 rounds, lastly failed: it failed." in page
    assert "Never counted" not in usual_page()


def test_evaluations_of_participants_are_compared() -> None:
    people = members("reported", "reported", "reported")
    evaluated = tuple(
        replace(one, metrics={"eval/auc": value}) for one, value in zip(people, (0.6, 0.9, 0.8), strict=True)
    )
    page = render(replace(DETAIL, rounds=(a_round(0, evaluated),)), now=1100.0)
    assert "Between participants" in page
    row = page[page.index("<th>eval/auc</th>") :]
    assert re.findall(r"0\.\d{4}", row)[:4] == ["0.6000", "0.8000", "0.9000", "0.3000"]
    assert "Between participants" not in render(DETAIL, now=1100.0)
