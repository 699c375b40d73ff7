import json

import pytest

from atoll.server.control import as_json, detail_of, participant_of, progress_of, token_of
from atoll.wire.v1 import control_pb2, enrolment_pb2


def summary(released: int = 1) -> control_pb2.RunSummary:
    return control_pb2.RunSummary(
        run="rabc", name="digits", status=control_pb2.RUN_STATUS_RUNNING, rounds_total=3, rounds_released=released
    )


def a_round(number: int, phase: str = "released", kind: str = "train", attempt: int = 0) -> control_pb2.RoundSummary:
    return control_pb2.RoundSummary(round=number, attempt=attempt, phase=phase, kind=kind, remaining_s=-1)


def test_rounds_come_in_order() -> None:
    message = control_pb2.GetRunResponse(
        summary=summary(),
        rounds=[
            a_round(2, kind="evaluate"),
            a_round(1, attempt=1),
            a_round(1, "abandoned"),
            a_round(0),
            a_round(3, "open"),
        ],
    )
    detail = detail_of(message)
    assert [(item.round, item.attempt) for item in detail.rounds] == [(0, 0), (1, 0), (1, 1), (2, 0), (3, 0)]
    assert detail.run.status == "running"


def test_a_round_over_a_part_of_the_model_says_which() -> None:
    part = a_round(4)
    part.fragment, part.fragments = 0, 3
    found = detail_of(control_pb2.GetRunResponse(summary=summary(), rounds=[a_round(3, kind="evaluate"), part])).rounds
    assert [(item.fragment, item.fragments) for item in found] == [(None, 1), (0, 3)]


def test_what_is_not_yet_is_none() -> None:
    message = control_pb2.RoundSummary(
        remaining_s=-1, members=[control_pb2.MemberSummary(participant="pa", report_seconds=-1)]
    )
    found = detail_of(control_pb2.GetRunResponse(summary=summary(), rounds=[message]))
    assert found.run.finished_at is None
    assert found.rounds[0].remaining_s is None
    assert found.rounds[0].members[0].report_s is None


def test_a_change_knows_the_model_of_its_round() -> None:
    changed = a_round(5)
    changed.version = 4
    progress = progress_of(control_pb2.WatchRunResponse(summary=summary(1), round=changed))
    assert progress.round is not None
    assert progress.round.version == 4


def test_a_change_may_be_without_a_round() -> None:
    assert progress_of(control_pb2.WatchRunResponse(summary=summary())).round is None


def test_words_of_a_newer_server_are_kept_as_numbers() -> None:
    silo = token_of(control_pb2.TokenSummary(kind=enrolment_pb2.PARTICIPANT_KIND_SILO))
    newer = token_of(control_pb2.TokenSummary.FromString(b"\x18\x63"))
    assert (silo.kind, newer.kind) == ("silo", "99")


def test_values_become_plain_json() -> None:
    message = control_pb2.ParticipantSummary(participant="pa", labels={"site": "north"}, last_seen_at=2.5)
    found = json.loads(json.dumps(as_json([participant_of(message)])))
    assert found[0]["labels"] == {"site": "north"}
    assert found[0]["last_seen_at"] == 2.5
    assert found[0]["revoked_at"] is None


def test_other_things_have_no_json_form() -> None:
    with pytest.raises(TypeError, match="bytes has no JSON form"):
        as_json({"a": b""})
