"""Records of a running job: facts that hold for all of it, and one record for each measured interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

MFU_FORMULA = "tokens/s * FLOPs per token / (ranks * peak FLOP/s of one rank)"
"""Model FLOPs utilisation (Chowdhery et al. 2022, appendix B): recomputed activations do not count."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts that do not change while a job runs.

    Attributes:
        job: name of the job.
        layout: the mesh, from ``ParallelDims.describe()``.
        world_size: number of ranks.
        total_steps: optimiser steps of the job.
        parameters: parameters of the whole model, with all experts.
        active_parameters: parameters that one token passes through; all of them in a dense model.
        flops_per_token: FLOPs forward and backward; see ``metrics.flops``.
        flops_formula: formula of ``flops_per_token``.
        peak_flops_per_s: one rank's peak rate of matrix products, from a data sheet or measured; None: no MFU.
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
        """Return the model FLOPs utilisation by ``MFU_FORMULA``, from 0 to 1; None if the peak rate is not known."""
        if self.peak_flops_per_s is None:
            return None
        return tokens_per_s * self.flops_per_token / (self.world_size * self.peak_flops_per_s)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Metrics of the whole job since the previous record: the same on every rank, or known only on rank 0.

    Attributes:
        step: optimiser steps since the job began, including this one.
        steps: steps since the previous record; ``tokens``, ``seconds`` and ``data_wait_s`` are sums over these.
        loss: sum of token losses / counted tokens, over the last step's global batch.
        lr: learning rate of the last step.
        grad_norm: norm of the last step's gradient before clipping; None if it was not computed.
        tokens: tokens that went through the model, over all ranks.
        total_tokens: tokens since the job began, including earlier processes of it.
        seconds: wall time from the end of the previous record to the end of this one.
        data_wait_s: seconds of these that the slowest rank waited for its batches.
        peak_memory_bytes: peak memory of the fullest rank: of the device's allocator on a GPU, of the process on a CPU.
        loss_scale: loss scale of float16 training.
        expert_load: tokens of the busiest expert / of the mean expert, maximum over layers; None without experts.
        epsilon: epsilon spent since the job began, at the job's delta, with ``[privacy]``.
        bubble_share: share of the seconds in which a pipeline's rank was idle, mean over ranks.
        communication_share: of a trace on this rank that ended since the previous record; see ``communication``.
        exposed_share: of the same trace; see ``communication``.
        replicas: replica groups whose gradients are in the last step, with recovery in place.
        replica_share: gradients of replica groups in these steps / (steps * groups).
        replicas_lost: replica groups lost since the launcher began.
        replicas_healed: replica groups that came back since then, with a live group's state.
        replicas_speculated: gradients in these steps that another replica group has computed for a late one.
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
    replicas: tuple[int, ...] | None = None
    replica_share: float | None = None
    replicas_lost: int | None = None
    replicas_healed: int | None = None
    replicas_speculated: int | None = None

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all ranks together."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def step_s(self) -> float:
        """Mean seconds of one step."""
        return self.seconds / self.steps

    @property
    def data_wait_share(self) -> float:
        """Share of the wall time spent waiting for data, from 0 to 1."""
        return self.data_wait_s / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Loss on held-out data after a step; the same on every rank, up to the seconds.

    Attributes:
        step: optimiser steps since the job began.
        loss: sum of token losses / counted tokens, in nats.
        tokens: counted tokens.
        seconds: wall time of the evaluation.
    """

    step: int
    loss: float
    tokens: int
    seconds: float

    @property
    def perplexity(self) -> float:
        """``exp(loss)``; infinite where that is beyond float64."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf
