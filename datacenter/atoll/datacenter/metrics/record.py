"""What is told of a running job: facts that hold for all of it, and one record each time the trainer has counted."""

from __future__ import annotations

from dataclasses import dataclass

MFU_FORMULA = "tokens/s * FLOPs per token / (ranks * peak FLOP/s of one rank)"
"""Model FLOPs utilisation (Chowdhery et al. 2022, appendix B): recomputed activations do not count."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What does not change while a job runs.

    Attributes:
        job: its name.
        layout: its mesh in words, ``ParallelDims.describe()``.
        world_size: ranks.
        total_steps: optimiser steps that it will take.
        parameters: of the whole model, every expert counted.
        active_parameters: that one token passes; the same for a dense model.
        flops_per_token: forward and backward, see ``metrics.flops``.
        flops_formula: of those.
        peak_flops_per_s: one rank's rate of matrix products, from a data sheet or measured; None: there is no MFU.
    """

    job: str
    layout: str
    world_size: int
    total_steps: int
    parameters: int
    active_parameters: int
    flops_per_token: float
    flops_formula: str
    peak_flops_per_s: float | None = None

    def mfu(self, tokens_per_s: float) -> float | None:
        """Model FLOPs utilisation by ``MFU_FORMULA``, from 0 to 1; None where the peak rate is not known."""
        if self.peak_flops_per_s is None:
            return None
        return tokens_per_s * self.flops_per_token / (self.world_size * self.peak_flops_per_s)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What the whole job did since the record before: the same on every rank, or worked out on rank 0 alone.

    Attributes:
        step: optimiser steps taken since the job began, this one included.
        steps: of them, those since the record before; ``tokens``, ``seconds`` and ``data_wait_s`` are sums over these.
        loss: sum of token losses / counted tokens, over the last step's global batch.
        lr: learning rate of the last step.
        grad_norm: of the last step, before clipping; None if it was not worked out.
        tokens: that went through the model, over all ranks.
        total_tokens: the same since the job began, what earlier processes of it did included.
        seconds: wall time, from the end of the record before to the end of this.
        data_wait_s: of those, how long the slowest rank waited for its batches.
        peak_memory_bytes: the fullest rank's peak: of the device's allocator on a GPU, of the process on a CPU.
        loss_scale: of float16 training.
        expert_load: tokens of the busiest expert / of the mean expert, at worst over layers; None without experts.
        epsilon: spent since the job began, at the job's delta, with ``[privacy]``.
        bubble_share: part of the seconds in which a pipeline's rank had nothing to do, mean over ranks.
        communication_share: of a trace that ended since the record before, on this rank; see ``communication``.
        exposed_share: of the same trace.
    """

    step: int
    loss: float
    lr: float
    grad_norm: float | None
    tokens: int
    total_tokens: int
    seconds: float
    data_wait_s: float
    peak_memory_bytes: int
    steps: int = 1
    loss_scale: float | None = None
    expert_load: float | None = None
    bubble_share: float | None = None
    communication_share: float | None = None
    exposed_share: float | None = None
    epsilon: float | None = None

    @property
    def tokens_per_s(self) -> float:
        """Of all ranks together."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def step_s(self) -> float:
        """Mean seconds of one step."""
        return self.seconds / self.steps

    @property
    def data_wait_share(self) -> float:
        """Part of the wall time that was spent waiting for data, from 0 to 1."""
        return self.data_wait_s / self.seconds if self.seconds > 0 else 0.0
