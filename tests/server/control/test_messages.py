import json
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest

from atoll.server import control
from atoll.server.control import (
    Following,
    ParticipantSummary,
    TokenSummary,
    as_json,
    detail_of,
    message_of,
    progress_of,
    value_of,
)
from atoll.wire.v1 import control_pb2, enrolment_pb2


def summary(released: int = 1) -> control_pb2.RunSummary:
    return control_pb2.RunSummary(
        run="rabc", name="digits", status=control_pb2.RUN_STATUS_RUNNING, rounds_total=3, rounds_released=released
    )


def a_round(number: int, phase: str = "released", kind: str = "train", attempt: int = 0) -> control_pb2.RoundSummary:
    return control_pb2.RoundSummary(round=number, attempt=attempt, phase=phase, kind=kind, fragments=1)


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
    message = control_pb2.RoundSummary(members=[control_pb2.MemberSummary(participant="pa")])
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
    silo = value_of(TokenSummary, control_pb2.TokenSummary(kind=enrolment_pb2.PARTICIPANT_KIND_SILO))
    newer = value_of(TokenSummary, control_pb2.TokenSummary.FromString(b"\x18\x63"))
    assert (silo.kind, newer.kind) == ("silo", "99")


def test_values_become_plain_json() -> None:
    message = control_pb2.ParticipantSummary(participant="pa", labels={"site": "north"}, last_seen_at=2.5)
    found = json.loads(json.dumps(as_json([value_of(ParticipantSummary, message)])))
    assert found[0]["labels"] == {"site": "north"}
    assert found[0]["last_seen_at"] == 2.5
    assert found[0]["revoked_at"] is None


def test_other_things_have_no_json_form() -> None:
    with pytest.raises(TypeError, match="bytes has no JSON form"):
        as_json({"a": b""})


PAIRS: list[tuple[type[Any], type[Any]]] = [
    (control.RunSummary, control_pb2.RunSummary),
    (control.RoundSummary, control_pb2.RoundSummary),
    (control.MemberSummary, control_pb2.MemberSummary),
    (control.TokenSummary, control_pb2.TokenSummary),
    (control.OperatorSummary, control_pb2.OperatorSummary),
    (control.OperatorCertificate, control_pb2.CreateOperatorResponse),
    (control.RevokedOperator, control_pb2.RevokeOperatorResponse),
    (control.ProjectSummary, control_pb2.ProjectSummary),
    (control.ClosedProject, control_pb2.CloseProjectResponse),
    (control.ProjectRoleSummary, control_pb2.ProjectRoleSummary),
    (control.ProjectQuota, control_pb2.ProjectQuota),
    (control.NewTokens, control_pb2.CreateTokenResponse),
    (control.ParticipantSummary, control_pb2.ParticipantSummary),
    (control.ServerInfo, control_pb2.GetServerInfoResponse),
    (control.LogLine, control_pb2.LogLine),
    (control.PrunedStorage, control_pb2.PrunedStorage),
    (control.RunSpending, control_pb2.RunSpending),
    (control.PopulationSummary, control_pb2.PopulationSummary),
    (control.ChargeSummary, control_pb2.ChargeSummary),
    (control.ChargesPage, control_pb2.ListChargesResponse),
    (control.ParticipantRun, control_pb2.ParticipantRun),
    (control.ParticipantPrivacy, control_pb2.GetParticipantPrivacyResponse),
]


@pytest.mark.parametrize(("kind", "message"), PAIRS, ids=lambda one: one.__name__)
def test_a_value_has_the_fields_of_its_message(kind: type[Any], message: type[Any]) -> None:
    described = {field.name: field for field in message.DESCRIPTOR.fields}
    assert {field.name for field in fields(kind)} == set(described)
    optional = {name for name, hint in get_type_hints(kind).items() if type(None) in get_args(hint)}
    assert optional == {name for name, field in described.items() if field.has_presence and field.message_type is None}


@pytest.mark.parametrize(("kind", "message"), PAIRS, ids=lambda one: one.__name__)
def test_a_value_has_the_types_of_its_message(kind: type[Any], message: type[Any]) -> None:
    value = value_of(kind, message())
    plain = {float: (float,), int: (int,), str: (str,), bool: (bool,), bytes: (bytes,)}
    for name, hint in get_type_hints(kind).items():
        if hint in plain:
            assert type(getattr(value, name)) in plain[hint], name


def test_a_message_is_made_of_what_is_given_and_of_attributes_by_name() -> None:
    token = value_of(TokenSummary, control_pb2.TokenSummary(token_id="t1", organisation="lab", used_by="pa"))
    made = message_of(control_pb2.TokenSummary, token, kind=enrolment_pb2.PARTICIPANT_KIND_SILO, used_by="")
    assert (made.token_id, made.organisation, made.used_by) == ("t1", "lab", "")


def test_a_message_lacks_no_field() -> None:
    with pytest.raises(AttributeError, match="is not given, and no source has it"):
        message_of(control_pb2.PrunedStorage, kind="spool", run="", count=3)


def test_a_message_has_no_field_that_is_not_its_own() -> None:
    with pytest.raises(AttributeError, match="PrunedStorage has no field bytes"):
        message_of(control_pb2.PrunedStorage, kind="spool", run="", count=3, stored_bytes=1, bytes=1)


def message(number: int, *members: tuple[str, str], more: bool = False) -> control_pb2.WatchRunResponse:
    found = [control_pb2.MemberSummary(participant=name, status=status) for name, status in members]
    return control_pb2.WatchRunResponse(round=control_pb2.RoundSummary(round=number, members=found), more=more)


def members(found: control_pb2.WatchRunResponse | None) -> dict[str, str]:
    assert found is not None
    return {member.participant: member.status for member in found.round.members}


def test_members_that_a_message_omits_keep_their_status() -> None:
    following = Following()
    assert following.complete(message(0, ("pa", "invited"), more=True)) is None
    assert members(following.complete(message(0, ("pb", "invited")))) == {"pa": "invited", "pb": "invited"}
    assert members(following.complete(message(0, ("pb", "reported")))) == {"pa": "invited", "pb": "reported"}
    assert members(following.complete(message(1, ("pb", "invited")))) == {"pb": "invited"}


def test_a_message_without_a_round_is_left_as_it_is() -> None:
    bare = control_pb2.WatchRunResponse(connected=3)
    assert Following().complete(bare) == bare
