from __future__ import annotations

import contextlib

import pytest

from atoll.server.errors import LimitExceededError
from atoll.server.rpc.download_room import DownloadRoom


def held(room: DownloadRoom, stack: contextlib.ExitStack, caller: str, chunks: int) -> int:
    """The number of chunks of 10 bytes that a caller gets room for."""
    for number in range(chunks):
        try:
            stack.enter_context(room.hold(caller, 10))
        except LimitExceededError:
            return number
    return chunks


def test_beyond_the_room_a_chunk_is_refused_with_a_time_to_try_again() -> None:
    room = DownloadRoom(200)
    with contextlib.ExitStack() as stack:
        assert held(room, stack, "alice", 20) == 10, "half of the room: she has more than her share of the rest"
        with pytest.raises(LimitExceededError) as caught, room.hold("alice", 10):
            pass
        assert (caught.value.detail.code, caught.value.detail.retry_after_s) == ("download.crowded", 5.0)
        assert len(room) == 100
    assert len(room) == 0
    with room.hold("alice", 10):
        assert len(room) == 10


def test_a_caller_that_reads_nothing_does_not_block_other_callers() -> None:
    room = DownloadRoom(200)
    with contextlib.ExitStack() as stack:
        held(room, stack, "greedy", 20)
        assert held(room, stack, "bob", 20) == 5, "half of the first half"
        assert held(room, stack, "carol", 20) == 3, "a third of it"
        assert held(room, stack, "greedy", 1) == 0


def test_many_callers_together_stay_within_the_room() -> None:
    room = DownloadRoom(200)
    with contextlib.ExitStack() as stack:
        taken = [held(room, stack, f"caller {number}", 20) for number in range(50)]
        assert len(room) <= 200
        assert taken[0] == 10
        assert taken[-1] == 0


def test_a_single_chunk_has_room_in_any_server() -> None:
    with DownloadRoom(1).hold("alice", 10):
        pass
