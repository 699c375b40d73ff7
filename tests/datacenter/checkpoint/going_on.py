"""Train the small job from its newest checkpoint, on ranks of a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atoll.datacenter.checkpoint import Checkpoints, Extra, RandomState, TrainingState
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import Meshes, ParallelDims, World, join_world
from atoll.datacenter.models import spec_of
from atoll.datacenter.train.build import make_step
from atoll.datacenter.train.step import Step
from tests.datacenter.training import share, small, whole
from tests.patience import WAIT_S


@dataclass
class Counter:
    """Data whose position is the number of the next step."""

    step: int = 0

    def state(self) -> Mapping[str, int | str]:
        return {"step": self.step}

    def load(self, state: Mapping[str, object]) -> None:
        self.step = int(str(state["step"]))


@dataclass
class Leftover:
    """An extra of one tensor."""

    value: Tensor = field(default_factory=lambda: torch.zeros(3))

    def state_dict(self) -> Mapping[str, Tensor]:
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.value = state["value"]


@dataclass
class Run:
    """A job on this rank."""

    job: SiloJob
    meshes: Meshes
    step: Step
    state: TrainingState
    checkpoints: Checkpoints

    @classmethod
    def start(cls, job: SiloJob, folder: str, world: World) -> Run:
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), world.device.type)
        step = make_step(job, spec_of(job.model), meshes, world.device)
        extras: dict[str, Extra] = {
            "random": RandomState(world.device),
            "leftover": Leftover(torch.full((3,), float(world.rank))),
        }
        state = TrainingState(step.passes.parts, step.optimiser, step.scale, Counter(), extras)
        return cls(job, meshes, step, state, Checkpoints.open(job, Path(folder), world, meshes.dims))

    def until(self, last: int) -> list[float]:
        """Run steps up to this number, and return their losses."""
        losses = []
        for number in range(self.state.step, last):
            losses.append(self.step(number, share(self.job, self.meshes, number)).loss)
            assert isinstance(self.state.data, Counter)
            self.state.data.step = number + 1
            self.checkpoints.after_step(number + 1, self.state)
        return losses


def sections_of(every: int | None = 2, **sections: dict[str, Any]) -> dict[str, Any]:
    """The small job with its checkpoints in ``kept``."""
    own: dict[str, Any] = {"folder": "kept", "every_steps": every} if every else {"folder": "kept"}
    return small(**{**sections, "checkpoint": {**own, **sections.get("checkpoint", {})}})


def go_on(sections: dict[str, Any], folder: str, last: int) -> dict[str, Any]:
    """Train from the newest checkpoint up to this number of steps.

    Returns:
        ``resumed`` (steps, -1 if from the beginning), ``losses`` from there, ``parameters``, ``leftover``, ``random``.
    """
    with join_world(WAIT_S) as world:
        run = Run.start(SiloJob.model_validate(sections), folder, world)
        resumed = run.checkpoints.resume(run.state)
        leftover = run.state.extras["leftover"]
        assert isinstance(leftover, Leftover)
        losses = run.until(last)
        run.checkpoints.close()
        return {
            "resumed": -1 if resumed is None else resumed,
            "losses": losses,
            "parameters": {name: whole(value) for name, value in run.state.model_tensors().items()},
            "leftover": leftover.value.clone(),
            "random": torch.rand(2),
        }
