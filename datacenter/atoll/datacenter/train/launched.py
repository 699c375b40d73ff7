"""A step whose work is queued on the device, and its metrics once they are read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.datacenter.errors import TrainingError
from atoll.datacenter.models.llama_spec import IGNORED_LABEL


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of a step; the same on every rank.

    Attributes:
        loss: mean over the counted tokens of the global batch, before the update.
        gradient_norm: norm before clipping.
        tokens: tokens counted in the global batch.
        lr: learning rate.
        skipped: whether a gradient that was not finite lowered the loss scale instead (float16).
        expert_load: tokens of the busiest expert / of the mean expert, maximum over layers; None without experts.
    """

    loss: float
    gradient_norm: float
    tokens: int
    lr: float
    skipped: bool
    expert_load: float | None = None


class Launched:
    """A queued step; ``result`` waits for its figures.

    The figures are copied to page-locked memory in the order of the device's work, and an event follows them: reading
    waits for this step only, not for a later one that is also queued.

    Args:
        number: number of the step, from 0.
        lr: its learning rate.
        figures: float64 ``[4]``: loss, gradient norm, counted tokens, expert load (0 without experts).
        may_be_empty: whether a batch without counted tokens is allowed.
        may_skip: whether a gradient that is not finite means that the step was skipped, instead of an error.
    """

    def __init__(self, number: int, lr: float, figures: Tensor, *, may_be_empty: bool, may_skip: bool) -> None:
        self._number, self._lr = number, lr
        self._may_be_empty, self._may_skip = may_be_empty, may_skip
        self._copied: torch.cuda.Event | None = None
        self._figures = figures
        if figures.device.type == "cuda":
            self._figures = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=True)
            self._figures.copy_(figures, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self._copied.record()

    def result(self) -> StepResult:
        """Return the result.

        Raises:
            TrainingError: if no token of the batch counts, or loss or gradient are not finite.
        """
        if self._copied is not None:
            self._copied.synchronize()
        loss, norm, tokens, load = self._figures.tolist()
        if not tokens and not self._may_be_empty:
            raise TrainingError(f"step {self._number}: no label of the global batch counts (all are {IGNORED_LABEL})")
        finite = norm < float("inf")
        if not finite and not self._may_skip:
            raise TrainingError(
                f"step {self._number}: loss {loss}, gradient norm {norm}: not finite; "
                f"lower optimiser.lr, now {self._lr:g}, or check the data of this step"
            )
        return StepResult(loss, norm, int(tokens), self._lr, skipped=not finite, expert_load=load or None)
