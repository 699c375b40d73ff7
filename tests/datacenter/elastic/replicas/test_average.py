"""Buffers of gradients: weights, parameters without a gradient, and writing back."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from atoll.datacenter.elastic.replicas.average import CONNECT_TIMEOUT_S, Averager, flats_of, meet
from atoll.datacenter.elastic.replicas.messages import Quorum
from atoll.datacenter.elastic.replicas.quorum import GRACE_S
from tests.patience import WAIT_S


def parameters(*gradients: float | None) -> list[nn.Parameter]:
    found = [nn.Parameter(torch.zeros(2, 3)) for _ in gradients]
    for parameter, gradient in zip(found, gradients, strict=True):
        parameter.grad = None if gradient is None else torch.full((2, 3), gradient)
    return found


def test_the_sum_of_weighted_gradients_is_their_mean_by_tokens() -> None:
    """The gradients that a group holds do not change until the mean counts."""
    mine, theirs = parameters(4.0), parameters(8.0)
    (flat,), (other,) = flats_of(mine), flats_of(theirs)
    mean = flat.weighted(0.25) + other.weighted(0.75)
    assert mine[0].grad is not None
    assert set(mine[0].grad.flatten().tolist()) == {4.0}
    flat.apply(mean)
    assert set(mine[0].grad.flatten().tolist()) == {7.0}


def test_a_parameter_has_a_gradient_where_any_group_has_one() -> None:
    """If none has one, the optimiser skips the parameter, as without groups; frozen parameters are not sent."""
    mine, theirs = parameters(4.0, None, None), parameters(2.0, 6.0, None)
    frozen = nn.Parameter(torch.zeros(100), requires_grad=False)
    (flat,), (other,) = flats_of([*mine, frozen]), flats_of(theirs)
    assert flat.zeros().numel() == 3 * 6 + 3
    flat.apply(flat.weighted(0.5) + other.weighted(0.5))
    first, second, third = (parameter.grad for parameter in mine)
    assert first is not None
    assert second is not None
    assert (set(first.flatten().tolist()), set(second.flatten().tolist()), third) == ({3.0}, {3.0}, None)


def test_formats_do_not_mix() -> None:
    mixed = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))]
    assert [flat.dtype for flat in flats_of(mixed)] == [torch.float32, torch.bfloat16]


def test_a_member_that_does_not_come_is_not_waited_for_once_the_attempt_is_void() -> None:
    """This also holds if the attempt was void before this rank began it; connecting would take 30 s."""
    averager = Averager(flats_of(parameters(1.0)), 0, 0, HashStore(), WAIT_S)
    broken: list[str] = []

    def sum_alone() -> None:
        try:
            averager.sum(Quorum(3, 1, 0, (0, 1), (0, 1), 2, 0.0), {0: 0.5})
        except RuntimeError as error:
            broken.append(str(error))

    thread = threading.Thread(target=sum_alone)
    thread.start()
    averager.abort(3)
    thread.join(WAIT_S)
    assert broken == ["a member was lost before all had come"]


def test_members_vote_before_they_are_taken_for_hung() -> None:
    """A rank may be unable to vote for as long as it connects; it must not be ended for that."""
    assert CONNECT_TIMEOUT_S < GRACE_S
    with pytest.raises(RuntimeError, match=r"not all members came within 0\.01 s"):
        meet(HashStore(), 0, 2, lambda: False, 0.01)


def sums_of(quorum: Quorum, gradients: dict[int, float], kept: dict[int, float]) -> list[list[Tensor]]:
    """Let two groups sum; ``kept``: a group's own gradients, if its parameters have those of the other group."""
    store, found = HashStore(), dict[int, list[Tensor]]()
    holders = dict(quorum.held)

    def sum_one(group: int) -> None:
        mine = parameters(kept.get(group, gradients[group]), None)
        averager = Averager(flats_of(mine), group, 0, store, WAIT_S)
        if group in kept:
            averager.set_aside()
            mine[0].grad = torch.full((2, 3), gradients[group])
        weights = {one: (0.1, 0.7)[one] for one in quorum.contributors if holders.get(one, one) == group}
        found[group] = averager.sum(quorum, weights)

    threads = [threading.Thread(target=sum_one, args=(group,)) for group in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    return [found[group] for group in (0, 1)]


def test_a_gradient_computed_for_a_late_group_gives_the_same_sum_to_the_bit() -> None:
    """The late group adds it in its own place. Group 0 holds both, so that group 1's parameters do not matter."""
    members = (0, 1)
    wanted = sums_of(Quorum(1, 1, 0, members, members, 2, 0.0), {0: 0.3, 1: 1.1}, {})
    found = sums_of(Quorum(1, 1, 0, members, members, 2, 0.0, ((1, 0),)), {0: 1.1, 1: 99.0}, {0: 0.3})
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.equal(mine[0], theirs[0])
    assert wanted[0][0][0].item() == pytest.approx(0.1 * 0.3 + 0.7 * 1.1)
