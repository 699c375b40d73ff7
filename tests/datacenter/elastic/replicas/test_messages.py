"""Messages between ranks and coordinator."""

from __future__ import annotations

import math

import pytest

from atoll.datacenter.elastic.replicas.messages import (
    Arrive,
    Begin,
    Decision,
    Heal,
    Hello,
    Message,
    Quorum,
    Speculate,
    Vote,
    encoded,
    from_rank,
    to_rank,
)


@pytest.mark.parametrize(
    "message", [Hello(1, 0, "start"), Arrive(3, 40, 0.1), Arrive(3, 40, 0.1, share=2), Vote(7, good=False)]
)
def test_a_ranks_message_arrives_as_it_was(message: Message) -> None:
    assert from_rank(encoded(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        Begin(3, Heal(1, 0, (1, 2)), 0),
        Begin(3, None, 0),
        Quorum(2, 1, 0, (0, 1), (1,), 40, 0.1 + 0.2),
        Quorum(2, 1, 0, (0, 1, 2), (0, 1, 2), 40, 0.0, ((0, 1), (2, 1))),
        Speculate(3, 1),
        Decision(2, commit=True, heal=Heal(1, 0, (2,))),
    ],
)
def test_a_coordinators_message_arrives_as_it_was(message: Message) -> None:
    assert to_rank(encoded(message)) == message


def test_a_loss_that_is_not_finite_arrives() -> None:
    """The step's own check then reports it."""
    found = from_rank(encoded(Arrive(0, 1, math.nan)))
    assert isinstance(found, Arrive)
    assert math.isnan(found.loss)


@pytest.mark.parametrize(
    "data", [b"{}", b"[]", b'{"kind": "Vote"}', b'{"kind": "Quorum", "attempt": 1}', b"\xff", b"7"]
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"message|codec|column"):
        from_rank(data)


def test_each_side_refuses_what_only_the_other_one_says() -> None:
    with pytest.raises(ValueError, match="Begin does not come from a rank"):
        from_rank(encoded(Begin(0, None, 0)))
    with pytest.raises(ValueError, match="Vote does not come from the coordinator"):
        to_rank(encoded(Vote(1, good=True)))
