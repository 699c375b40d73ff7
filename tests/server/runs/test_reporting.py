import math
from dataclasses import replace
from typing import Any

import pytest

from atoll.server.errors import ConflictError, ForbiddenError, InvalidRequestError, TooLateError
from atoll.server.ingest.coordinator_api import Commit, Disposition
from atoll.server.rounds import (
    Member,
    MemberStatus,
    PastRound,
    Phase,
    Receipt,
    Roster,
    RoundKey,
    RoundKind,
    RoundState,
    RunPolicy,
    RunState,
    StragglerPolicy,
    UpdateRef,
    Verdict,
    initial,
)
from atoll.server.runs.reporting import answer_to, member_of, no_longer_wanted, reported_event
from atoll.wire.v1 import transfer_pb2

KEY = RoundKey(3, 0)
POLICY = RunPolicy(rounds=9, straggler=StragglerPolicy(cohort_size=1))


def commit(**fields: Any) -> Commit:
    return Commit("alice", transfer_pb2.ReportRequest(**fields), "main", payload_bytes=8)


def running() -> RunState:
    """A run at round 3 that remembers round 2."""
    state = initial("r", POLICY, "m")
    past = PastRound(
        RoundKey(2, 0), RoundKind.TRAIN, 2, Roster.of([Member("alice", 5, MemberStatus.TIMED_OUT, "late")])
    )
    live = RoundState(KEY, RoundKind.TRAIN, 3, Phase.OPEN, 1.0, Roster.of([Member("bob", 5)]))
    return replace(state, round=live, past=(past,))


class TestEvent:
    def test_an_update_with_its_figures(self) -> None:
        event = reported_event(
            commit(
                upload_id="u", digest="d", weight=7, metrics={"loss": 0.5}, evaluation={"acc": 0.9}, evaluation_weight=3
            ),
            KEY,
        )
        assert event.update == UpdateRef(KEY, "alice", "d", 7, "main")
        assert event.weight == 7
        assert event.metrics == (("eval/acc", 0.9), ("eval/examples", 3.0), ("train/loss", 0.5))

    def test_an_evaluation_weighs_what_was_evaluated(self) -> None:
        event = reported_event(commit(evaluation={"acc": 0.9}, evaluation_weight=3), KEY)
        assert (event.update, event.weight) == (None, 3)

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"weight": 2**40 + 1}, "report.weight"),
            ({"evaluation_weight": 2**64 - 1}, "report.weight"),
            ({"digest": "d"}, "report.digest"),
            ({"metrics": {"a": math.inf}}, "report.metrics"),
            (
                {"metrics": {str(n): 0.0 for n in range(200)}, "evaluation": {str(n): 0.0 for n in range(57)}},
                "report.metrics",
            ),
            ({"metrics": {"x" * 129: 0.0}}, "report.metrics"),
        ],
    )
    def test_impossible_reports(self, fields: dict[str, Any], code: str) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            reported_event(commit(**fields), KEY)
        assert caught.value.detail.code == code
        assert caught.value.detail.remedy


class TestAnswer:
    @pytest.mark.parametrize(
        ("verdict", "disposition"),
        [
            (Verdict.COUNTED, Disposition.COUNTED),
            (Verdict.CARRIED, Disposition.CARRIED),
            (Verdict.LATE, Disposition.DROPPED),
        ],
    )
    def test_verdicts(self, verdict: Verdict, disposition: Disposition) -> None:
        effects = (Receipt(KEY, "bob", Verdict.REJECTED, "x"), Receipt(KEY, "alice", verdict, ""))
        assert answer_to(effects, "alice", "d").disposition is disposition

    def test_a_refusal_has_its_reason(self) -> None:
        with pytest.raises(ConflictError, match="weight 0"):
            answer_to((Receipt(KEY, "alice", Verdict.REJECTED, "weight 0"),), "alice", "d")
        with pytest.raises(ConflictError, match="does not take"):
            answer_to((), "alice", "d")


class TestWanted:
    def test_members_are_found_where_they_are_remembered(self) -> None:
        state = running()
        assert member_of(state, KEY, "bob") is not None
        assert member_of(state, RoundKey(2, 0), "alice") is not None
        assert member_of(state, KEY, "alice") is None
        assert member_of(state, RoundKey(0, 0), "alice") is None

    @pytest.mark.parametrize(
        ("key", "who", "kind"),
        [
            (KEY, "alice", ForbiddenError),
            (RoundKey(2, 0), "bob", ForbiddenError),
            (RoundKey(2, 0), "alice", TooLateError),
            (RoundKey(0, 0), "alice", TooLateError),
            (RoundKey(3, 1), "bob", InvalidRequestError),
            (RoundKey(9, 0), "bob", InvalidRequestError),
        ],
    )
    def test_only_a_stranger_is_told_that_it_is_one(self, key: RoundKey, who: str, kind: type[Exception]) -> None:
        assert type(no_longer_wanted(running(), key, who)) is kind

    def test_before_the_first_round(self) -> None:
        assert isinstance(no_longer_wanted(initial("r", POLICY, "m"), KEY, "bob"), InvalidRequestError)
