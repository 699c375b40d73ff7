"""The baseline of the GPU benchmark trains what the trainer trains."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.distributed.tensor import DTensor

from atoll.datacenter.models import spec_of
from benchmarks.silo.gpu.encoding import encoded
from benchmarks.silo.gpu.recipe import recipe
from benchmarks.silo.gpu.sizes import FULL, SMOKE, Size
from benchmarks.silo.gpu.speed import batches_of, one_rank, trained
from benchmarks.silo.gpu.toggles import TOGGLES, job_of
from tests.datacenter.ranks import run_ranks

_STEPS = 4


def _losses(number_format: str) -> tuple[list[float], list[float]]:
    job = SMOKE.job(SMOKE.billion, SMOKE.batch, precision={"compute": number_format})
    with one_rank() as world, trained(job, world) as trainer:
        model = spec_of(job.model).build()
        (ours,) = trainer.step.passes.parts
        whole = {name: part.full_tensor() for name, part in ours.named_parameters() if isinstance(part, DTensor)}
        model.load_state_dict(whole)
        step = recipe(job, model, batches_of(job, world.device))
        return [trainer.advance().loss for _ in range(_STEPS)], [float(step()) for _ in range(_STEPS)]


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("number_format", "tolerance"), [("float32", 1e-4), pytest.param("bfloat16", 3e-3, marks=pytest.mark.every_case)]
)
def test_the_recipe_has_the_trainers_losses(number_format: str, tolerance: float) -> None:
    ((ours, theirs),) = run_ranks(_losses, 1, number_format)
    assert ours == pytest.approx(theirs, rel=tolerance)
    assert ours[-1] < ours[0]
    assert torch.tensor(ours).isfinite().all()


def _encoded() -> list[float]:
    return [figure.value for figure in encoded(SMOKE)]


@pytest.mark.ranks
def test_an_update_is_encoded_beside_what_that_replaces() -> None:
    ((beside, on_host),) = run_ranks(_encoded, 1)
    assert min(beside, on_host) > 0


def _without(name: str) -> tuple[bool, int]:
    """Return whether the optimiser is fused, and how many results the first step's queue returned."""
    with (
        TOGGLES[name].replaced(),
        one_rank() as world,
        trained(SMOKE.job(SMOKE.billion, SMOKE.batch), world) as trainer,
    ):
        results = trainer.queue()
        trainer.settle()
        return bool(trainer.state.optimiser.defaults["fused"]), len(results if isinstance(results, list) else [results])


TURNED_OFF = {"collector in step": (True, 0), "fused optimiser": (False, 0), "figures read a step later": (True, 1)}


def _without_each() -> dict[str, tuple[bool, int]]:
    return {name: _without(name) for name in TURNED_OFF}


@pytest.mark.ranks
def test_what_a_row_turns_off_is_off_there() -> None:
    assert run_ranks(_without_each, 1) == [TURNED_OFF]


@pytest.mark.parametrize("size", [FULL, SMOKE], ids=["full", "smoke"])
def test_each_setting_makes_two_ways_to_measure(size: Size) -> None:
    """Also of rows that need a GPU: their jobs are valid, and differ unless the processes or their code do."""
    for name, toggle in TOGGLES.items():
        using, without = (job_of(toggle, way, size) for way in ("using", "without"))
        replaced = toggle.replaced is not nullcontext
        assert (using != without) + replaced + (toggle.started is not None) == 1, name
        assert using.mesh.pp * using.mesh.tp * using.mesh.cp <= toggle.ranks
