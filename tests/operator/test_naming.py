"""Runs and participants by name."""

import pytest

from atoll.operator.errors import BadInputError
from atoll.operator.naming import participant_called, run_called
from atoll.server.control import ParticipantSummary

RUNS = (
    ("raaaaaaaaaaaa", "ridge", "running"),
    ("rbbbbbbbbbbbb", "ridge", "finished"),
    ("rcccccccccccc", "wards", "failed"),
)


def never() -> tuple[tuple[str, str, str], ...]:
    raise AssertionError("an id must not be looked up")


def test_an_id_is_taken_as_it_is() -> None:
    assert run_called("rzzzzzzzzzzzz", never) == "rzzzzzzzzzzzz"


def test_a_name_that_one_run_has_is_that_run() -> None:
    assert run_called("wards", lambda: RUNS) == "rcccccccccccc"


def test_a_name_that_no_run_has_is_left_to_the_server() -> None:
    assert run_called("nothing", lambda: RUNS) == "nothing"


def test_a_name_of_several_runs_is_refused_with_all_of_them() -> None:
    with pytest.raises(BadInputError) as caught:
        run_called("ridge", lambda: RUNS)
    assert "2 runs are named 'ridge': raaaaaaaaaaaa (running), rbbbbbbbbbbbb (finished)" in str(caught.value)
    assert "by its id" in str(caught.value)


def someone(name: str, organisation: str, *, revoked_at: float | None = None, **labels: str) -> ParticipantSummary:
    return ParticipantSummary(name, organisation, "edge", 0.0, None, revoked_at, False, 1, 0, 0, labels)


THERE = (
    someone("paaaaaaaaaaaa", "north", site="ward-7"),
    someone("pbbbbbbbbbbbb", "north", site="ward-8"),
    someone("pcccccccccccc", "south", revoked_at=1.0),
    someone("pdddddddddddd", "south"),
)


@pytest.mark.parametrize(
    ("text", "participant"),
    [
        ("pzzzzzzzzzzzz", "pzzzzzzzzzzzz"),
        ("north/pbbbbbbbbbbbb", "pbbbbbbbbbbbb"),
        ("south", "pdddddddddddd"),
        ("site=ward-8", "pbbbbbbbbbbbb"),
        ("west", "west"),
        ("site=", "site="),
    ],
)
def test_a_participant_by_id_organisation_or_label(text: str, participant: str) -> None:
    assert participant_called(text, lambda: THERE) == participant


def test_an_organisation_of_several_is_refused_with_all_of_them() -> None:
    with pytest.raises(BadInputError) as caught:
        participant_called("north", lambda: THERE)
    assert "paaaaaaaaaaaa (north, site=ward-7, away), pbbbbbbbbbbbb (north, site=ward-8, away)" in str(caught.value)
