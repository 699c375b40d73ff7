"""The compiled loss of whole logits beside the eager one: values, gradients, and bytes beside the plan's.

It is compiled on one rank, because the process that ranks are forked from has loaded the compiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from atoll.datacenter.job import SiloJob
from atoll.datacenter.models.kinds import spec_of
from atoll.datacenter.models.plain import plain_spec
from atoll.datacenter.models.spec import ModelSpec
from atoll.datacenter.parallel.loss import Loss
from atoll.datacenter.plan.activations import activations_of
from atoll.datacenter.plan.layout import Task, layout_of
from tests.datacenter.parallel.test_cross_entropy import peak_bytes
from tests.datacenter.plan.jobs import SMALL, small
from tests.datacenter.ranks import run_ranks

TOKENS, CLASSES, DIVISOR = 256, 20_000, 37.0


@dataclass
class Output:
    """As models of ``transformers`` return."""

    logits: Tensor


def job(compute: str, *, compiles: bool) -> SiloJob:
    return small(
        model=SMALL | {"vocab": CLASSES},
        batch={"sequence": TOKENS, "global_batch": 1},
        precision={"compute": compute},
        memory={"compile": compiles, "loss_chunk_tokens": 0},
    )


def loss_of(spec: ModelSpec, *, compiles: bool) -> Loss:
    return Loss(spec, chunk=None, classes=None, divided=False, compiles=compiles)


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, an output matrix, and labels of which some do not count."""
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(1, TOKENS, 16, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(CLASSES, 16, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(CLASSES, (1, TOKENS), generator=generator)
    labels[0, :3] = -100
    return hidden, weight, labels


def values_and_gradients(*, compiles: bool, wrapped: bool) -> list[Tensor]:
    spec = plain_spec(nn.Linear(1, 1))
    hidden, weight, labels = inputs(torch.float32)
    logits = functional.linear(hidden, weight)
    loss = loss_of(spec, compiles=compiles)(Output(logits) if wrapped else logits, labels, DIVISOR)
    return [loss.detach(), *torch.autograd.grad(loss, (hidden, weight))]


@pytest.mark.parametrize(
    "wrapped",
    [
        pytest.param(False, id="tensor", marks=pytest.mark.every_case),
        pytest.param(True, id="object with logits"),
    ],
)
def test_values_and_gradients_are_those_of_the_eager_loss(*, wrapped: bool) -> None:
    (found,) = run_ranks(partial(values_and_gradients, compiles=True, wrapped=wrapped), 1)
    wanted = values_and_gradients(compiles=False, wrapped=wrapped)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("compute", "compiles"),
    [
        pytest.param("float32", False, id="eager-float32"),
        pytest.param("bfloat16", False, id="eager-bfloat16"),
        pytest.param("float32", True, id="compiled-float32", marks=pytest.mark.every_case),
        pytest.param("bfloat16", True, id="compiled-bfloat16"),
    ],
)
def test_its_peak_is_what_the_plan_says(compute: str, *, compiles: bool) -> None:
    """Compiled: logits and their gradient in the dtype of the logits; eager: three float32 copies."""
    planned = job(compute, compiles=compiles)
    acts = activations_of(Task.of(planned), layout_of(planned, 1))
    (found,) = run_ranks(partial(peak, compute, compiles=compiles), 1)
    assert found == pytest.approx((acts.saved + acts.loss).value, rel=0.01)


def peak(compute: str, *, compiles: bool) -> int:
    """Bytes of the loss and its gradient."""
    planned = job(compute, compiles=compiles)
    hidden, weight, labels = inputs({"float32": torch.float32, "bfloat16": torch.bfloat16}[compute])
    logits = functional.linear(hidden, weight).detach().requires_grad_()
    loss = loss_of(spec_of(planned.model), compiles=compiles)

    def run() -> None:
        # Copied, not computed: some processors need more memory for a product in bfloat16.
        torch.autograd.grad(loss(logits.clone(), labels, DIVISOR), logits)

    run()  # compiles
    return peak_bytes(run)
