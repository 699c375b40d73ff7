"""DiLoCo (Douillard et al. 2023, algorithm 1) in one process: plain PyTorch inside, numpy outside.

Also streaming DiLoCo (Douillard et al. 2025, algorithm 2): one fragment a round; steps continue while it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from atoll.datacenter.data import Loader, open_job_batches
from atoll.datacenter.job import SiloJob
from atoll.datacenter.models import spec_of
from atoll.datacenter.models.llama_spec import IGNORED_LABEL

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass
class Worker:
    """A silo's inner steps in one process; optimiser and data continue from round to round.

    Attributes:
        job: the silo's job.
        model: the whole model.
        optimiser: PyTorch's AdamW.
        loader: loads the whole batch.
    """

    job: SiloJob
    model: nn.Module
    optimiser: torch.optim.Optimizer
    loader: Loader

    @classmethod
    def of(cls, job: SiloJob, folder: Path) -> Worker:
        model = spec_of(job.model).build()
        section = job.optimiser
        groups = [
            {"params": [one for one in model.parameters() if one.dim() >= 2], "weight_decay": section.weight_decay},
            {"params": [one for one in model.parameters() if one.dim() < 2], "weight_decay": 0.0},
        ]
        optimiser = torch.optim.AdamW(groups, lr=section.lr, betas=section.betas, eps=section.epsilon)
        return cls(job, model, optimiser, Loader(open_job_batches(job, folder), 0, 1))

    def take(self, weights: Arrays, share: float = 0.0) -> None:
        """Set weights by name, mixed with this share of its own weights."""
        named = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, value in weights.items():
                fresh = torch.from_numpy(np.array(value))
                named[name].copy_(fresh.lerp(named[name], share) if share else fresh)

    def steps(self, count: int) -> int:
        """Take this many steps; return the number of tokens that counted."""
        return sum(self._step() for _ in range(count))

    def change(self, start: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Local - start, by name."""
        named = dict(self.model.named_parameters())
        return {name: named[name].detach().numpy() - value for name, value in start.items()}

    def trained(self, weights: Arrays) -> tuple[dict[str, npt.NDArray[Any]], int]:
        """Local - global after the round's steps, by name, and the tokens that counted in them."""
        self.take(weights)
        tokens = self.steps(self.job.federation.inner_steps)
        return self.change(weights), tokens

    def _step(self) -> int:
        batch = self.loader.next()
        logits = self.model(batch.tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten())
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if (limit := self.job.optimiser.max_grad_norm) is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.optimiser.step()
        return int((batch.labels != IGNORED_LABEL).sum())


@dataclass(frozen=True)
class Outer:
    """The result of outer steps.

    Attributes:
        weights: float32, after the last outer step.
        tokens: each silo's tokens, by round.
    """

    weights: dict[str, npt.NDArray[Any]]
    tokens: list[list[int]]


def diloco(jobs: Sequence[SiloJob], folder: Path, initial: Arrays, rounds: int, lr: float, momentum: float) -> Outer:
    """Take this many outer steps with Nesterov's momentum; a silo's weight is its number of tokens."""
    workers = [Worker.of(job, folder) for job in jobs]
    weights = {name: np.array(value, np.float64) for name, value in initial.items()}
    moments = {name: np.zeros_like(value) for name, value in weights.items()}
    counted = []
    for _ in range(rounds):
        start = {name: value.astype(np.float32) for name, value in weights.items()}
        deltas, tokens = zip(*(worker.trained(start) for worker in workers), strict=True)
        counted.append(list(tokens))
        for name, value in start.items():
            mean = np.average([delta[name].astype(np.float64) for delta in deltas], axis=0, weights=tokens)
            moments[name] = momentum * moments[name] + mean
            weights[name] = value + lr * (mean + momentum * moments[name])
    for worker in workers:
        worker.loader.close()
    return Outer({name: value.astype(np.float32) for name, value in weights.items()}, counted)


def streaming(
    jobs: Sequence[SiloJob],
    folder: Path,
    initial: Arrays,
    fragments: Sequence[Sequence[str]],
    rounds: int,
    lr: float,
    momentum: float,
) -> Outer:
    """Play this many rounds, one fragment each, given by tensor names; all jobs overlap by the same number of steps."""
    workers = [Worker.of(job, folder) for job in jobs]
    section = jobs[0].federation
    weights = {name: np.array(value, np.float32) for name, value in initial.items()}
    moments = {name: np.zeros(value.shape) for name, value in weights.items()}
    ahead, counted = [0] * len(workers), []
    for worker in workers:
        worker.take(weights)
    for number in range(rounds):
        fragment = {name: weights[name] for name in fragments[number % len(fragments)]}
        more = section.inner_steps - (section.overlap_steps if number else 0)
        tokens = [before + worker.steps(more) for before, worker in zip(ahead, workers, strict=True)]
        deltas = [worker.change(fragment) for worker in workers]
        counted.append(tokens)
        ahead = [worker.steps(section.overlap_steps) for worker in workers]
        for name, value in fragment.items():
            mean = np.average([delta[name].astype(np.float64) for delta in deltas], axis=0, weights=tokens)
            moments[name] = momentum * moments[name] + mean
            weights[name] = (value + lr * (mean + momentum * moments[name])).astype(np.float32)
        for worker in workers:
            worker.take({name: weights[name] for name in fragment}, section.mixing if section.overlap_steps else 0.0)
    for worker in workers:
        worker.loader.close()
    return Outer(weights, counted)
