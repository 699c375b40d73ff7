"""The seed and the frozen tensors of an invitation."""

from __future__ import annotations

import pytest

from atoll.client._session.invitation import MAX_FROZEN, invitation_of
from atoll.wire.errors import WireError
from atoll.wire.v1 import participation_pb2
from tests.vectors.files import stored


def message() -> participation_pb2.Participate:
    (first, _) = stored("invitation.json")["cases"]
    return participation_pb2.CheckInResponse.FromString(bytes.fromhex(first["message"])).participate


def test_the_seed_of_the_invitation_is_that_of_the_task() -> None:
    (expected,) = [
        int(case["seed"])
        for case in stored("seed.json")["cases"]
        if (case["job_seed"], case["round"], case["participant"]) == ("7", 3, "p1")
    ]
    assert invitation_of(message()).task.seed == expected


def test_a_server_without_seeds_leaves_the_participant_to_draw_one() -> None:
    unseeded = message()
    unseeded.ClearField("seed")
    assert len({invitation_of(unseeded).task.seed for _ in range(3)}) == 3


def test_a_seed_out_of_range_is_refused() -> None:
    wrong = message()
    wrong.seed = 2**63
    with pytest.raises(WireError, match="seed"):
        invitation_of(wrong)


def test_patterns_of_frozen_tensors_are_those_of_the_task() -> None:
    freezing = message()
    freezing.frozen.extend(["embed.*", "b"])
    task = invitation_of(freezing).task
    assert [task.is_frozen(name) for name in ("embed.table", "b", "body")] == [True, True, False]
    assert not invitation_of(message()).task.is_frozen("b")


def test_too_many_patterns_of_frozen_tensors_are_refused() -> None:
    wrong = message()
    wrong.frozen.extend(["x"] * (MAX_FROZEN + 1))
    with pytest.raises(WireError, match="257 patterns of frozen tensors, at most 256"):
        invitation_of(wrong)
