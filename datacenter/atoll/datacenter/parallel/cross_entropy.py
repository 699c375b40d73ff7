"""Output projection and cross entropy together, a chunk of tokens at a time.

Whole logits of 16,384 tokens and 128,256 classes take 7.8 GiB in float32, and a cross entropy holds three such
tensors. Here a chunk's logits become its loss and its gradient at once, in place, and are freed: the forward pass
leaves only the gradients of hidden states and matrix, so nothing is computed twice (as in Liger Kernel, Hsu et al.
2024).

PyTorch 2.13's ``linear_cross_entropy`` also works in chunks. But it takes no matrix that is divided along the classes,
and it changes its gradients in place in the only backward pass that it allows; zero-bubble pipelines need two.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_reduce, wait_tensor

from atoll.datacenter.models.compiled import compiled
from atoll.datacenter.models.llama_spec import IGNORED_LABEL


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    scale: float | Tensor,
    chunk: int,
    classes: dist.ProcessGroup | None = None,
    compiles: bool = False,
) -> Tensor:
    """Return the sum of cross entropies of ``hidden @ weight.T`` times a scale, in float32.

    The gradient is scaled before it is rounded to the dtype of the hidden states, so that a loss scale protects it.

    Args:
        hidden: ``[..., dim]``.
        weight: ``[classes, dim]``, same dtype; this rank's rows of it if ``classes`` is given.
        labels: int64 ``[...]``; -100 does not count. A label that is no class raises an ``IndexError``. With
            ``classes`` no rank can detect this alone, and the loss is NaN.
        scale: multiplies loss and gradient.
        chunk: tokens whose logits exist at the same time.
        classes: group over which the classes are divided evenly, in order. The gradient of ``hidden`` is then this
            rank's part of a sum over the group.
        compiles: fuse the passes over the logits of a chunk: on a GPU three instead of sixteen. Not with ``classes``.
    """
    loss: Tensor = _ChunkedCrossEntropy.apply(hidden, weight, labels, scale, chunk, classes, compiles)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return loss


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        scale: float | Tensor,
        chunk: int,
        classes: dist.ProcessGroup | None,
        compiles: bool,
    ) -> Tensor:
        rows, targets = hidden.flatten(0, -2), labels.flatten()
        loss_and_gradient = compiled(_loss_and_gradient) if compiles and classes is None else _loss_and_gradient
        trains_hidden, trains_weight = ctx.needs_input_grad[:2]
        of_rows = torch.empty_like(rows) if trains_hidden else None
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if trains_weight else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for begin in range(0, len(rows), chunk):
            part = slice(begin, begin + chunk)
            loss, gradient = loss_and_gradient(rows[part], weight, targets[part], scale, classes)
            total += loss
            if of_rows is not None:
                torch.mm(gradient, weight, out=of_rows[part])
            if of_weight is not None:
                _add_product(of_weight, gradient.t(), rows[part])
            del gradient  # before the next chunk's logits are made
        ctx.of_rows = None if of_rows is None else of_rows.view_as(hidden)
        ctx.of_weight = None if of_weight is None else of_weight.to(weight.dtype)
        return total * scale

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        # not in place: a pipeline that splits its backward pass calls this twice
        found = (None if one is None else one * outer[0].to(one.dtype) for one in (ctx.of_rows, ctx.of_weight))
        return (*found, None, None, None, None, None)


def _loss_and_gradient(
    rows: Tensor, weight: Tensor, targets: Tensor, scale: float | Tensor, classes: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """Return the sum of cross entropies in float32, and its gradient by the logits times a scale, in their dtype."""
    values = torch.mm(rows, weight.t()).float()
    largest = _over(values.amax(dim=1), "max", classes)
    values.sub_(largest[:, None])
    counts = targets != IGNORED_LABEL
    own, mine = targets, counts  # `gather` raises for a label that is no class
    if classes is not None:
        own = targets - classes.rank() * len(weight)
        mine = counts & (own >= 0) & (own < len(weight))
    index = torch.where(mine, own, 0)[:, None]
    picked = values.gather(1, index)[:, 0] * mine
    sums, picked, has_class = _over(torch.stack((values.exp_().sum(dim=1), picked, mine.float())), "sum", classes)
    losses = torch.where(has_class > 0, sums.log() - picked, torch.nan)  # a label that is no class of any rank
    loss = torch.where(counts, losses, 0.0).sum()
    values.div_(sums[:, None])
    values.scatter_(1, index, values.gather(1, index) - mine[:, None].float())
    return loss, values.mul_(torch.where(counts, scale, 0.0)[:, None]).to(weight.dtype)


def _over(values: Tensor, how: str, group: dist.ProcessGroup | None) -> Tensor:
    if group is None:
        return values
    summed: Tensor = wait_tensor(all_reduce(values, how, group))  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return summed


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a product to a float32 sum."""
    if right.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total.add_(torch.mm(left, right))
