"""Answers about runs stay within the message size that an operator's commands accept."""

from __future__ import annotations

import pytest

from atoll.server.rpc import bounds
from atoll.server.rpc.bounds import MAX_OPERATOR_BYTES
from atoll.wire.v1 import control_pb2

NAMES = [f"train/{number:03}" + "é" * 125 for number in range(128)]


def members(count: int) -> list[control_pb2.MemberSummary]:
    return [
        control_pb2.MemberSummary(participant=f"p{number:012}", metrics=dict.fromkeys(NAMES, 1.5))
        for number in range(count)
    ]


def rounds(count: int, names: int = 0) -> list[control_pb2.RoundSummary]:
    metrics = dict.fromkeys(NAMES[:names], 1.5)
    return [control_pb2.RoundSummary(round=number, metrics=metrics) for number in range(count)]


def test_what_fits_stays_as_it_is() -> None:
    shown = bounds.with_members(bounds.newest_rounds(rounds(3)), [((2, 0), members(2)), ((1, 0), members(1))])
    assert [len(one.members) for one in shown.rounds] == [0, 1, 2]
    assert shown.omission == ""


def test_a_round_of_hostile_members_keeps_their_names() -> None:
    summary = bounds.fitted(control_pb2.RoundSummary(reason="deadline", members=members(250)))
    assert len(summary.members) == 250
    assert not any(member.metrics for member in summary.members)
    assert summary.reason == "deadline; too large for one answer: the members' figures are left out"


def test_members_are_left_out_of_a_round_that_would_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_ROUND_BYTES", 1000)
    summary = bounds.fitted(control_pb2.RoundSummary(members=members(100)))
    assert 0 < len(summary.members) < 100
    assert f"and {100 - len(summary.members)} members are left out" in summary.reason
    assert summary.ByteSize() < 1000 + len(summary.reason) + 16


def test_a_large_run_leaves_out_the_oldest_members_first() -> None:
    found = ((number, 0) for number in reversed(range(1000)))
    shown = bounds.with_members(bounds.newest_rounds(rounds(1000, names=64)), ((key, members(1)) for key in found))
    answer = control_pb2.GetRunResponse(rounds=shown.rounds)
    assert answer.ByteSize() < MAX_OPERATOR_BYTES - bounds.MAX_ROUND_BYTES
    assert len(answer.rounds) == 1000
    have = [bool(one.members) for one in answer.rounds]
    assert have == sorted(have)
    assert 0 < sum(have) < 1000
    last = len(have) - sum(have)
    assert (
        shown.omission == f"too large for one answer: the members of round {last} and of those before it are left out"
    )


def test_then_the_oldest_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_ROUNDS_BYTES", 100_000)
    shown = bounds.newest_rounds(rounds(100, names=16))
    kept = [one.round for one in shown.rounds]
    assert 0 < len(kept) < 100
    assert kept == list(range(100 - len(kept), 100))
    assert shown.omission == f"too large for one answer: the oldest {100 - len(kept)} rounds are left out"
