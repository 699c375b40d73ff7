from atoll.server.control import Following
from atoll.wire.v1 import control_pb2


def message(number: int, *members: tuple[str, str], more: bool = False) -> control_pb2.WatchRunResponse:
    found = [control_pb2.MemberSummary(participant=name, status=status) for name, status in members]
    return control_pb2.WatchRunResponse(round=control_pb2.RoundSummary(round=number, members=found), more=more)


def members(found: control_pb2.WatchRunResponse | None) -> dict[str, str]:
    assert found is not None
    return {member.participant: member.status for member in found.round.members}


def test_members_that_are_not_told_again_stand_as_they_did() -> None:
    following = Following()
    assert following.complete(message(0, ("pa", "invited"), more=True)) is None
    assert members(following.complete(message(0, ("pb", "invited")))) == {"pa": "invited", "pb": "invited"}
    assert members(following.complete(message(0, ("pb", "reported")))) == {"pa": "invited", "pb": "reported"}
    assert members(following.complete(message(1, ("pb", "invited")))) == {"pb": "invited"}


def test_a_message_without_a_round_is_left_as_it_is() -> None:
    bare = control_pb2.WatchRunResponse(connected=3)
    assert Following().complete(bare) == bare
