"""Hooks on real DDP modules over real process groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.compression import attach_hook, hook_of
from atoll.datacenter.compression.hooks import GradientHook
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.job.parallel import DataParallelSection, Hook
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import small, train

STEPS = 5
LOSSY: list[Hook] = ["powersgd", "int8", "sign", "topk"]
SETTINGS: dict[str, dict[str, Any]] = {"powersgd": {"hook_rank": 2, "hook_start": 1}, "topk": {"hook_keep": 0.05}}
SHAPES = [(96, 64), (64,), (64, 160), (160,), (300, 64)]


class Odd(nn.Module):
    """Parameters of many shapes, used in a different order than registered, so that DDP rebuilds its buckets."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(shape, generator=generator) / 8) for shape in (*SHAPES, (520, 520), (520,))
        )

    def forward(self, factor: Tensor) -> Tensor:
        """``[1]`` to a scalar."""
        order = (3, 0, 6, 2, 5, 1, 4)
        total = factor.sum() * 0
        for number in order:
            total = (total + (self.weights[number] * factor).sin().mean()).tanh()
        return total * 1e4  # float16 has nothing between 0 and 6e-8


def section(hook: Hook, bucket_mb: int = 1) -> DataParallelSection:
    return DataParallelSection.model_validate(
        {"method": "ddp", "hook": hook, "bucket_mb": bucket_mb, **SETTINGS.get(hook, {})}
    )


def wrapped(hook: Hook, bucket_mb: int = 1) -> tuple[DistributedDataParallel, GradientHook]:
    module = DistributedDataParallel(Odd(), bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)
    group = dist.group.WORLD
    assert group is not None
    attach_hook(module, section(hook, bucket_mb), group)
    found = hook_of(module)
    assert found is not None
    return module, found


def factor(step: int, rank: int) -> Tensor:
    return torch.randn(1, generator=torch.Generator().manual_seed(100 * step + rank)) * (1 + rank)


def own_gradients(module: DistributedDataParallel, step: int) -> list[Tensor]:
    """Gradients of this rank, without DDP."""
    return [*torch.autograd.grad(module.module(factor(step, dist.get_rank())), list(module.module.parameters()))]


def step_gradients(module: DistributedDataParallel, step: int) -> list[Tensor]:
    """Result of the hook."""
    module.zero_grad(set_to_none=True)
    module(factor(step, dist.get_rank())).backward()
    return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]


def sums(hook: Hook) -> dict[str, Any]:
    """Sums over steps of gradients and results, the residuals, and the last gradients."""
    module, found = wrapped(hook)
    own = [torch.zeros_like(value) for value in module.module.parameters()]
    out = [torch.zeros_like(value) for value in module.module.parameters()]
    last: list[Tensor] = []
    for step in range(STEPS):
        last = step_gradients(module, step)
        for sums_, gradients in ((own, own_gradients(module, step)), (out, last)):
            for one, gradient in zip(sums_, gradients, strict=True):
                one.add_(gradient)
    state = {name.removeprefix("residual."): value for name, value in found.state_dict().items()}
    names = [name for name, _ in module.module.named_parameters()]
    left = [state.get(name, torch.zeros(0)) for name in names]
    return {
        "own": own,
        "out": out,
        "left": left,
        "last": last,
        "sent": found.traffic.sent_bytes,
        "plain": found.traffic.plain_bytes,
    }


def all_sums() -> dict[str, Any]:
    hooks: list[Hook] = ["float16", "bfloat16", *LOSSY]
    return {hook: sums(hook) for hook in hooks}


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.every_case), 3])
def found(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Results of ``sums``, by rank and hook."""
    return run_ranks(all_sums, request.param)


@pytest.mark.parametrize("hook", LOSSY)
def test_results_and_residuals_add_up_to_the_gradients(hook: Hook, found: list[dict[str, Any]]) -> None:
    """This holds across buckets that DDP rebuilds after the first step, and all replicas get the same bits."""
    by_rank = [one[hook] for one in found]
    lossy = 0
    for number, out in enumerate(by_rank[0]["out"]):
        went_in = torch.stack([one["own"][number].double() for one in by_rank]).sum(0)
        left = torch.stack([one["left"][number].double() for one in by_rank]).sum(0).view_as(went_in)
        scale = max(float(one["own"][number].abs().max()) for one in by_rank)
        torch.testing.assert_close(out.double() + left, went_in, rtol=0, atol=1e-5 * scale)
        lossy += bool(left.abs().max() > 1e-6 * went_in.abs().max())
        assert all(torch.equal(one["out"][number], out) for one in by_rank)
    assert lossy, "nothing was left over: the hook is not lossy, and this test shows nothing"


@pytest.mark.parametrize(("hook", "relative"), [("float16", 2e-3), ("bfloat16", 1.6e-2)])
def test_half_precision_is_near_the_sum(hook: Hook, relative: float, found: list[dict[str, Any]]) -> None:
    by_rank = [one[hook] for one in found]
    for number, out in enumerate(by_rank[0]["out"]):
        went_in = torch.stack([one["own"][number] for one in by_rank]).sum(0)
        assert (out - went_in).norm() <= relative * sum(one["own"][number].norm() for one in by_rank)
        assert all(torch.equal(one["out"][number], out) for one in by_rank)
    assert by_rank[0]["sent"] * 2 == by_rank[0]["plain"] > 0


SIZES = [torch.Size(shape).numel() for shape in (*SHAPES, (520, 520), (520,))]
KEPT = sum(-(-size // 20) for size in SIZES)


def test_bytes_that_are_sent(found: list[dict[str, Any]]) -> None:
    ranks = len(found)
    signs, int8 = (sum(-(-size // block) for size in SIZES) for block in (1024, 256))
    gathered = STEPS * (ranks - 1)
    for one in found:
        assert one["sign"]["plain"] == pytest.approx(STEPS * 2 * (ranks - 1) / ranks * 4 * sum(SIZES))
        assert one["sign"]["sent"] == gathered * signs * (128 + 4)
        assert one["topk"]["sent"] == gathered * 8 * KEPT
    mean = sum(one["int8"]["sent"] for one in found) / ranks
    assert mean == pytest.approx(2 * gathered * int8 / ranks * (256 + 4), rel=0.01)  # N does not always divide blocks


def test_bytes_of_factors(found: list[dict[str, Any]]) -> None:
    """After one plain step: rank 2 times rows and columns of each matrix, and vectors as they are."""
    matrices = [shape for shape in (*SHAPES, (520, 520)) if len(shape) == 2]
    vectors = sum(SIZES) - sum(rows * columns for rows, columns in matrices)
    floats = sum(SIZES) + (STEPS - 1) * (vectors + 2 * sum(rows + columns for rows, columns in matrices))
    ranks = len(found)
    assert found[0]["powersgd"]["sent"] == pytest.approx(2 * (ranks - 1) / ranks * 4 * floats)


def resumed(hook: Hook) -> list[bool]:
    """Three steps, a checkpoint into a new process's module and two more, compared with five without a break."""
    straight, _ = wrapped(hook)
    for step in range(3):
        step_gradients(straight, step)
    before = hook_of(straight)
    assert before is not None
    state = {name: value.clone() for name, value in before.state_dict().items()}
    anew, after = wrapped(hook)
    after.load_state_dict(state)
    return [
        torch.equal(one, other)
        for step in (3, 4)
        for one, other in zip(step_gradients(straight, step), step_gradients(anew, step), strict=True)
    ]


def all_resumed() -> dict[str, list[bool]]:
    return {hook: resumed(hook) for hook in LOSSY}


def test_a_resumed_job_sends_what_an_undisturbed_one_sends() -> None:
    """Messages are equal bit for bit, although the first step has different buckets."""
    for by_hook in run_ranks(all_resumed, 2):
        for hook, same in by_hook.items():
            assert all(same), hook


def fit(hook: Hook) -> float:
    """Final loss of a small regression, split over ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(64, 20, generator=generator)
    targets = inputs @ torch.randn(20, 8, generator=generator)
    torch.manual_seed(0)
    module = DistributedDataParallel(nn.Linear(20, 8, bias=False))
    group = dist.group.WORLD
    assert group is not None
    attach_hook(module, section(hook), group)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(150):
        optimiser.zero_grad()
        errors = module(inputs[rank::size]) - targets[rank::size]
        (errors.square().sum() / len(inputs)).backward()
        optimiser.step()
    return float((module(inputs) - targets).square().mean().detach())


def fits() -> dict[str, float]:
    hooks: list[Hook] = ["float16", "bfloat16", *LOSSY]
    return {hook: fit(hook) for hook in hooks}


def test_each_hook_fits_a_regression() -> None:
    for losses in run_ranks(fits, 2):
        for hook, loss in losses.items():
            assert loss < 1e-2, hook


def sizes_of(bucket_mb: int) -> Iterator[Tensor]:
    module, _ = wrapped("int8", bucket_mb)
    for step in range(3):
        yield from step_gradients(module, step)


def two_bucket_sizes() -> list[bool]:
    return [torch.equal(one, other) for one, other in zip(sizes_of(1), sizes_of(100), strict=True)]


def test_buckets_change_nothing() -> None:
    for one in run_ranks(two_bucket_sizes, 3):
        assert all(one)


def test_a_hook_that_sends_everything_changes_nothing() -> None:
    """The hook is set through the job file; it keeps a share of 1, which is all elements."""
    hook = {"hook": "topk", "hook_keep": 1.0, "check_replicas_every": 3}
    alone, found = run_ranks(train, 1, small())[0], run_ranks(train, 2, small(data_parallel=hook))
    for one in found:
        torch.testing.assert_close(one["losses"], alone["losses"], rtol=0, atol=2e-6)
        for name, value in one["parameters"].items():
            torch.testing.assert_close(value, alone["parameters"][name], rtol=0, atol=2e-6)


def test_error_feedback_under_a_moving_loss_scale_is_refused() -> None:
    job = SiloJob.model_validate(small(data_parallel={"hook": "int8"}, precision={"compute": "float16"}))
    with pytest.raises(LayoutError, match='hook = "int8" keeps parts of gradients'):
        check_layout(job, 2)
