"""Images instead of text: the same layouts, and a model that learns digits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.job.model import ModelSection
from atoll.datacenter.mesh import Meshes, ParallelDims, join_world
from atoll.datacenter.models import spec_of
from atoll.datacenter.train.build import make_step
from tests.datacenter.models.layouts import SHARDED_AND_CUT
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import STEPS, Example, assert_same, small_in_two, whole
from tests.patience import WAIT_S

VISION: dict[str, Any] = {"kind": "vision", "vocab": 10, "layers": 2, "dim": 32, "heads": 4, "kv_heads": 4}


def digits() -> tuple[Tensor, Tensor]:
    """float32 ``[1797, 1, 8, 8]`` in [0, 1], and int64 ``[1797]``."""
    pixels, labels = load_digits(return_X_y=True)
    return torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8) / 16, torch.from_numpy(labels)


def train_digits(sections: dict[str, Any], steps: int) -> dict[str, Any]:
    """Train on this rank; as ``tests.datacenter.training.train``, and the accuracy on held-out digits."""
    job = SiloJob.model_validate(sections)
    images, labels = digits()
    with join_world(WAIT_S) as world:
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), world.device.type)
        step = make_step(job, spec_of(job.model), meshes, world.device)
        rank, ranks, total = meshes.data["batch"].get_local_rank(), meshes.dims.batch, job.batch.global_batch
        outcomes = []
        for number in range(steps):
            first = number * total % 1500 + rank * total // ranks
            mine = slice(first, first + total // ranks)
            rows = job.batch.micro_batch
            pieces = zip(torch.split(images[mine], rows), torch.split(labels[mine], rows), strict=True)
            outcomes.append(step(number, [Example(*piece) for piece in pieces]))
        (part,) = step.passes.parts
        right = part(images[1600:]).argmax(-1) == labels[1600:] if world.size == 1 else torch.zeros(1)
        return {
            "losses": [outcome.loss for outcome in outcomes],
            "norms": [outcome.gradient_norm for outcome in outcomes],
            "parameters": {name.removeprefix("module."): whole(value) for name, value in part.named_parameters()},
            "right": right.float().mean().item(),
        }


def job_of(ranks: int, **sections: dict[str, Any]) -> dict[str, Any]:
    """A larger epsilon: corners of digits are blank, and AdamW would blow up the rounding of gradients near zero."""
    return small_in_two(ranks, **{"model": VISION, "optimiser": {"lr": 1e-3, "epsilon": 1e-5}, **sections})


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """One process."""
    found: dict[str, Any] = run_ranks(train_digits, 1, job_of(1), STEPS)[0]
    return found


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(2, {}, id="ddp-2"),
        *SHARDED_AND_CUT,
        pytest.param(
            2,
            {"mesh": {"tp": 2}, "tensor_parallel": {"sequence": False, "loss": False}},
            id="tp-2-plain",
            marks=pytest.mark.every_layout,
        ),
    ],
)
def test_equal_to_one_process(ranks: int, sections: dict[str, Any], alone: dict[str, Any]) -> None:
    for found in run_ranks(train_digits, ranks, job_of(ranks, **sections), STEPS):
        assert_same(found, alone)


def test_it_learns_digits() -> None:
    sections = job_of(1, batch={"global_batch": 100, "micro_batch": 100}, optimiser={"lr": 1e-2})
    (found,) = run_ranks(train_digits, 1, {**sections, "job": {"name": "digits", "steps": 120}}, 120)
    assert found["right"] > 0.8


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"side": 8}, "side: a vision model has image, patch, channels"),
        ({"patch": 3}, "patch must divide image"),
        ({"channels": "1"}, "whole numbers"),
    ],
)
def test_settings_that_fit_no_image_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        spec_of(ModelSection.model_validate({**VISION, "settings": settings}))
