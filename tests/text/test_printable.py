from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.text.printable import make_printable, printable
from atoll.wire.v1 import control_pb2


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Zürich, 病院\u3000A", "Zürich, 病院\u3000A"),
        ("\x1b[2Jx", r"\x1b[2Jx"),
        ("\x9b31m", r"\x9b31m"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("\u202egpj.exe\u2069", r"\u202egpj.exe\u2069"),
        ("\u2028\x7f\x00", r"\u2028\x7f\x00"),
        ("\U000e0041", r"\U000e0041"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_does_not_print_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_line_breaks_stay_where_they_are_wanted() -> None:
    assert printable("a\nb\x1b", lines=True) == "a\nb\\x1b"


@given(st.text())
def test_the_result_is_printable_and_stays_as_it_is(text: str) -> None:
    shown = printable(text)
    assert all(char.isprintable() or char.isspace() for char in shown)
    assert not any(char in shown for char in "\x1b\x9b\n\r\u202e\u2028")
    assert printable(shown) == shown
    assert printable(text) == text or not text.isprintable()


def test_every_text_of_a_message_is_made_printable() -> None:
    member = control_pb2.MemberSummary(participant="p\x1b", detail="d\n", metrics={"m\x9b": 1.0})
    rounds = [control_pb2.RoundSummary(reason="r\x07", members=[member], phases_s={"dr\x1baw": 1.0})]
    answer = control_pb2.GetRunResponse(rounds=rounds, job_toml="[job]\nname = '\x1b'\n")
    make_printable(answer, lines=("job_toml",))
    (shown,) = answer.rounds
    assert (shown.reason, dict(shown.phases_s)) == (r"r\x07", {r"dr\x1baw": 1.0})
    (seen,) = shown.members
    assert (seen.participant, seen.detail, dict(seen.metrics)) == (r"p\x1b", r"d\n", {r"m\x9b": 1.0})
    assert answer.job_toml == "[job]\nname = '\\x1b'\n"
    people = control_pb2.ListParticipantsResponse(
        participants=[control_pb2.ParticipantSummary(labels={"site\x1b": "\x1b[31m"})]
    )
    make_printable(people)
    assert dict(people.participants[0].labels) == {r"site\x1b": r"\x1b[31m"}
    as_it_is = control_pb2.PopulationSummary(line="\x1b", head="\x1b")
    make_printable(as_it_is, as_they_are=("line",))
    assert (as_it_is.line, as_it_is.head) == ("\x1b", r"\x1b")
