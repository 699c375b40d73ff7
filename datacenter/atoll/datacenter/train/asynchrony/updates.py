"""Apply updates on the server: one optimiser step for each update, or for each clock of all workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from atoll.datacenter.train.asynchrony.vector import write_gradients

if TYPE_CHECKING:
    from atoll.datacenter.train.asynchrony.channel import Push


class Updates:
    """Holds the parameters and their optimiser. For one thread at a time.

    Args:
        parameters: parameters on the server.
        optimiser: optimiser of the parameters.
        workers: number of workers.
        apply: ``arrival``: each update is a step when it arrives, its gradient being its share of the mean (Dean et al.
            2012). ``clock``: updates of a clock are added in order of worker and are one step; with staleness 0 this is
            synchronous training with any optimiser. Keeps updates of up to staleness + 1 clocks, in host memory: with
            many workers a GPU has no room for them.
        before_step: called with the clock; may set the learning rate and clip gradients.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        optimiser: torch.optim.Optimizer,
        workers: int,
        apply: Literal["arrival", "clock"],
        before_step: Callable[[int], None],
    ) -> None:
        self._parameters, self._optimiser, self._workers = parameters, optimiser, workers
        self._apply, self._before_step = apply, before_step
        self._early: dict[int, dict[int, Push]] = defaultdict(dict)

    def take(self, worker: int, clock: int, update: Push) -> None:
        """Apply or keep an update; its gradient may be overwritten during the call and after it."""
        if self._apply == "arrival":
            self._step(update.gradient.div_(max(1, update.tokens) * self._workers), clock)
            return
        together = self._early[clock]
        if len(together) + 1 < self._workers:
            together[worker] = replace(update, gradient=_on_host(update.gradient))
            return
        del self._early[clock]
        self._step(_mean(together | {worker: update}, update.gradient.device), clock)

    def _step(self, gradient: Tensor, clock: int) -> None:
        write_gradients(gradient, self._parameters)
        self._before_step(clock)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)


def _on_host(vector: Tensor) -> Tensor:
    """Return a copy in host memory, page-locked if it comes from a GPU and returns there."""
    copied = torch.empty(vector.shape, pin_memory=vector.device.type == "cuda")
    return copied.copy_(vector)


def _mean(updates: Mapping[int, Push], device: torch.device) -> Tensor:
    """Return the mean gradient over the tokens of all workers, added in order of worker."""
    first, *others = (updates[number] for number in range(len(updates)))
    total = first.gradient.to(device)
    for one in others:
        total += one.gradient.to(device)
    return total.div_(max(1, sum(one.tokens for one in updates.values())))
