"""Mixture of experts in one process: compared with plain loops; balancing works."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from atoll.datacenter.job.model import MoeSection
from atoll.datacenter.mesh import Meshes, ParallelDims
from atoll.datacenter.models.extra import divide_extra_losses
from atoll.datacenter.models.moe import RoutedExperts, grouped_product, product_by_group
from atoll.datacenter.train.experts import busiest, settle_experts
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import RELATIVE, small, train

DIM, EXPERTS = 16, 6


class Waits(TorchDispatchMode):
    """Counts operators whose result the host waits for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.count = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "_local_scalar_dense" in str(operator)
        return operator(*args, **(kwargs or {}))


def routed(**keys: Any) -> RoutedExperts:
    """Return experts with random weights, the same each time."""
    torch.manual_seed(0)
    module = RoutedExperts(DIM, MoeSection.model_validate({"experts": EXPERTS, "expert_dim": 8, **keys}))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module


def hidden(batch: int = 3, sequence: int = 12, seed: int = 1) -> Tensor:
    return torch.randn(batch, sequence, DIM, generator=torch.Generator().manual_seed(seed)) + 0.5


def expert(module: RoutedExperts, number: int, token: Tensor) -> Tensor:
    w1, w2, w3 = (weight[number] for weight in (module.experts.w1, module.experts.w2, module.experts.w3))
    return w2 @ (functional.silu(w1 @ token) * (w3 @ token))


def by_hand(module: RoutedExperts, tokens: Tensor) -> tuple[Tensor, int]:
    """Route one token and one choice after another; also returns the number of dropped choices."""
    section = module.section
    scores = (tokens @ module.router.weight.t()).softmax(-1)
    weights, chosen = scores.topk(section.top_k, -1)
    if section.top_k > 1:
        weights = weights / weights.sum(-1, keepdim=True)
    mixed, dropped = torch.zeros_like(tokens), 0
    batch, sequence, _ = tokens.shape
    places = sequence
    if section.capacity_factor is not None:
        places = min(sequence, ceil(section.capacity_factor * section.top_k * sequence / section.experts))
    for row in range(batch):
        taken = [0] * section.experts
        for choice in range(section.top_k):
            for place in range(sequence):
                number = int(chosen[row, place, choice])
                taken[number] += 1
                if taken[number] > places:
                    dropped += 1
                    continue
                added = weights[row, place, choice] * expert(module, number, tokens[row, place])
                mixed = mixed.index_put((torch.tensor(row), torch.tensor(place)), added, accumulate=True)
    return mixed, dropped


@pytest.mark.parametrize(
    ("top_k", "factor", "drops"), [(1, None, False), (2, None, False), (1, 1.0, True), (3, 0.7, True), (2, 9.0, False)]
)
def test_every_token_gets_what_its_experts_give(top_k: int, factor: float | None, drops: bool) -> None:
    module = routed(top_k=top_k, capacity_factor=factor, balance="none")
    tokens = hidden().requires_grad_()
    wanted, dropped = by_hand(module, tokens)
    assert (dropped > 0) is drops
    found = module(tokens)
    torch.testing.assert_close(found, wanted, rtol=0, atol=RELATIVE * wanted.abs().max().item())
    parameters = [tokens, *module.parameters()]
    for mine, theirs in zip(
        torch.autograd.grad(found.square().sum(), parameters),
        torch.autograd.grad(wanted.square().sum(), parameters),
        strict=True,
    ):
        off = RELATIVE * theirs.abs().max().item()
        torch.testing.assert_close(mine, theirs, rtol=0, atol=off)


@pytest.mark.parametrize("counts", [[3, 0, 4], [0, 0, 7], [7, 0, 0], [0, 0, 0]])
@pytest.mark.parametrize("inputs", [8, 5])
def test_grouped_product_is_one_product_for_each_group(counts: list[int], inputs: int) -> None:
    """Five floats are not a multiple of 16 bytes: here it falls back to the loop."""
    rows = torch.randn(sum(counts), inputs, requires_grad=True)
    weights = torch.randn(3, 12, inputs, requires_grad=True)
    found, wanted = (work(rows, weights, torch.tensor(counts)) for work in (grouped_product, product_by_group))
    torch.testing.assert_close(found, wanted)
    mine, theirs = (torch.autograd.grad(product.sum(), (rows, weights)) for product in (found, wanted))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_the_auxiliary_loss_is_that_of_the_paper_for_each_sequence() -> None:
    """Fedus et al. 2021, equations 4 to 6; its share of the gradient is that of tokens of the whole batch."""
    module = routed(top_k=2, loss_weight=0.5)
    divide_extra_losses([module], 40.0, torch.device("cpu"))
    tokens = hidden()
    (module(tokens) * 0).sum().backward()
    weight = module.router.weight
    scores = (tokens @ weight.t()).softmax(-1)
    loss = torch.zeros(())
    for one in scores:
        share = functional.one_hot(one.topk(2).indices, EXPERTS).sum((0, 1)) / (2 * len(one))
        loss = loss + 0.5 * EXPERTS * (share * one.mean(0)).sum() * len(one)
    (wanted,) = torch.autograd.grad(loss / 40.0, weight)
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, wanted, rtol=1e-5, atol=1e-8)
    assert wanted.abs().max() > 1e-4


def test_evenly_spread_tokens_cost_the_weight_of_the_loss() -> None:
    """With equal scores the loss of a sequence is its weight times its length, for any choice of experts."""
    module = routed(top_k=2, loss_weight=0.5)
    load = torch.full((3, EXPERTS), 4)
    scores = torch.full((3, 12, EXPERTS), 1 / EXPERTS)
    assert float(module._balance_loss(scores, load)) == pytest.approx(0.5 * 3 * 12)


def loads(steps: int, keys: dict[str, Any]) -> list[float]:
    """Busiest expert's tokens over the mean expert's, by step, of a router that sees similar tokens in each step."""
    meshes = Meshes.build(ParallelDims(), "cpu")
    module = routed(**keys)
    with torch.no_grad():  # tokens have a mean of 0.5
        module.router.weight += torch.linspace(0.15, -0.15, EXPERTS)[:, None]
    optimiser = torch.optim.SGD([module.router.weight], lr=0.5)
    found = []
    for step in range(steps):
        tokens = hidden(4, 64, seed=step)
        divide_extra_losses([module], 4 * 64, torch.device("cpu"))
        (module(tokens) * 0).sum().backward()
        optimiser.step()
        optimiser.zero_grad()
        found.append(float(busiest(settle_experts([module], meshes, torch.device("cpu")), meshes, torch.device("cpu"))))
    return found


@pytest.mark.parametrize(
    ("keys", "evens_out"),
    [
        ({"balance": "bias", "bias_rate": 0.005}, True),
        ({"balance": "loss", "loss_weight": 1.0}, True),
        ({"balance": "none"}, False),
    ],
)
def test_balancing_evens_out_a_skewed_router(keys: dict[str, Any], evens_out: bool) -> None:
    """Over 100 steps; 1 is even, 3 is two experts for all tokens."""
    (found,) = run_ranks(loads, 1, 100, keys)
    assert found[0] > 1.8
    if evens_out:
        assert max(found[-10:]) < 1.3
    else:
        assert min(found[-10:]) > 1.8


def test_a_forward_pass_that_is_worked_out_again_is_not_counted_again() -> None:
    moe = {"experts": 8, "expert_dim": 16, "balance": "none"}
    sections = small(model={"layers": 1, "moe": moe})
    counts = [
        run_ranks(train, 1, {**sections, "memory": {"checkpointing": checkpointing}}, 2)[0]["expert_loads"]
        for checkpointing in ("none", "full")
    ]
    assert counts[0] == counts[1]
    assert [sum(load) for load in counts[0].values()] == [2 * 8 * 16]


@pytest.mark.parametrize(("top_k", "factor"), [(1, 1.0), (3, 0.7), (2, 9.0)])
def test_padded_experts_give_the_same_without_waiting(top_k: int, factor: float) -> None:
    keys = {"top_k": top_k, "capacity_factor": factor}
    found, wanted = routed(**keys, padded=True), routed(**keys)
    inputs = [hidden().requires_grad_() for _ in range(2)]
    with Waits() as waits:
        mixed = found(inputs[0])
        mixed.square().sum().backward()
    assert waits.count == 0
    exact = wanted(inputs[1])
    exact.square().sum().backward()
    torch.testing.assert_close(mixed, exact, rtol=0, atol=1e-5)
    assert inputs[0].grad is not None
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=0, atol=1e-4)
    for (name, one), (_, other) in zip(found.named_parameters(), wanted.named_parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-4, msg=name)
