"""The baseline of the GPU benchmark trains what the trainer trains."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from importlib.metadata import packages_distributions
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from packaging.utils import canonicalize_name
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from atoll.datacenter.models import spec_of
from atoll.datacenter.parallel import cross_entropy, loss
from benchmarks import figures, runner
from benchmarks.figures import Figure
from benchmarks.silo import gpu
from benchmarks.silo.gpu.encoding import encoded
from benchmarks.silo.gpu.hidden import LINK_BYTES_PER_S, exchange_of, hidden, hidden_percent
from benchmarks.silo.gpu.recipe import recipe
from benchmarks.silo.gpu.sizes import FULL, SMOKE, Size
from benchmarks.silo.gpu.speed import batches_of, one_rank, trained
from benchmarks.silo.gpu.toggles import TOGGLES, job_of
from tests.datacenter.ranks import run_ranks
from tests.patience import WAIT_S

ROOT = Path(__file__).parents[2]

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


def _exchanged() -> tuple[list[float], int, int, float]:
    """Return the row's figures, the steps made and the bytes sent beside two steps, and the seconds of that."""
    figures = [figure.value for figure in hidden(SMOKE)]
    with exchange_of(SMOKE) as exchange:
        total_bytes = exchange.encode().total_bytes
        began = time.perf_counter()
        exchange.beside(2)
        return figures, exchange.trainer.state.step, total_bytes, time.perf_counter() - began


@pytest.mark.ranks
def test_an_exchange_is_sent_beside_steps_at_the_speed_of_the_link() -> None:
    ((figures, steps, total_bytes, seconds),) = run_ranks(_exchanged, 1)
    _, exchange_ms, encoding_ms = figures
    assert min(exchange_ms, encoding_ms) > 0
    assert steps == 2
    assert seconds > total_bytes / LINK_BYTES_PER_S


def test_what_steps_wait_for_is_not_hidden() -> None:
    seconds = {"exchange": 4.0, "steps": 10.0}
    assert hidden_percent(seconds | {"beside": 10.0}) == 100
    assert hidden_percent(seconds | {"beside": 11.0}) == 75
    assert hidden_percent(seconds | {"beside": 14.0}) == 0


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


@pytest.mark.parametrize(
    ("name", "part"), [("compiled loss of whole logits", loss), ("compiled loss in chunks", cross_entropy)]
)
def test_what_compiles_a_loss_returns_it_as_it_is(name: str, part: ModuleType) -> None:
    assert part.compiled(_loss_of) is not _loss_of
    with TOGGLES[name].replaced():
        assert part.compiled(_loss_of) is _loss_of


def _loss_of() -> None:
    raise AssertionError("only compiled, never called")


def _gathering_only_themselves() -> tuple[int, int]:
    """Return how many of FSDP's units gather no other unit in the backward pass, and how many there are."""
    with one_rank() as world, trained(SMOKE.job(SMOKE.billion, SMOKE.batch), world) as trainer:
        parts = [part for part in trainer.step.passes.parts[0].modules() if isinstance(part, FSDPModule)]
        states = {part._get_fsdp_state() for part in parts}  # FSDP has no public name for it
        return sum(one._states_to_backward_prefetch == [one] for one in states), len(states)


def _evaluated(way: str) -> list[int]:
    """Return the steps after which the model was evaluated, of two."""
    found = []
    job = job_of(TOGGLES["evaluation after each step"], way, SMOKE)
    with one_rank() as world, trained(job, world) as trainer:
        for _ in range(2):
            trainer.queue()
            found += [] if trainer.evaluation is None else [trainer.evaluation.step]
        trainer.settle()
    return found


def _without_each() -> dict[str, Any]:
    prefetching = _gathering_only_themselves()
    with TOGGLES["units gathered ahead in the backward pass"].replaced():
        waiting = _gathering_only_themselves()
    return {
        "without": {name: _without(name) for name in TURNED_OFF},
        "gathering only themselves": [prefetching, waiting],
        "evaluated": [_evaluated(way) for way in ("using", "without")],
    }


@pytest.mark.ranks
def test_what_a_row_turns_off_is_off_there() -> None:
    (found,) = run_ranks(_without_each, 1)
    assert found["without"] == TURNED_OFF
    assert found["gathering only themselves"] == [(1, 5), (5, 5)]  # the first unit has none before it
    assert found["evaluated"] == [[1, 2], []]


@pytest.mark.parametrize("size", [FULL, SMOKE], ids=["full", "smoke"])
def test_each_setting_makes_two_ways_to_measure(size: Size) -> None:
    """Also of rows that need a GPU: their jobs are valid, and differ unless the processes or their code do."""
    for name, toggle in TOGGLES.items():
        using, without = (job_of(toggle, way, size) for way in ("using", "without"))
        replaced = toggle.replaced is not nullcontext
        assert (using != without) + replaced + (toggle.started is not None) == 1, name
        assert using.mesh.pp * using.mesh.tp * using.mesh.cp <= toggle.ranks


def test_a_row_without_its_library_is_left_out_and_the_others_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is measured before the run ends is on disk by then."""

    def measured(_: Size) -> Iterator[Figure]:
        yield Figure.stated("measured", 1.0, "s", "python -m benchmarks.silo gpu")

    def lacking(_: Size) -> Iterator[Figure]:
        yield Figure.stated("half", 1.0, "s", "python -m benchmarks.silo gpu")
        raise ModuleNotFoundError("No module named 'torchao'")

    monkeypatch.setattr(gpu, "ROWS", {"first": measured, "float8": lacking, "last": measured})
    monkeypatch.setattr(runner, "write", partial(figures.write, folder=tmp_path))
    with pytest.raises(ExceptionGroup) as caught:
        runner.run_all({"gpu": partial(gpu.run, smoke=True)}, kept_as="silo-", as_json=False)
    assert [str(error) for error in caught.value.exceptions] == ["No module named 'torchao'"]
    kept = json.loads((tmp_path / "silo-gpu.json").read_text())
    assert [entry["name"] for entry in kept] == ["measured", "half", "measured"]


_STARTED = """
import json, sys
from importlib import import_module
sys.modules.update(dict.fromkeys(json.loads(sys.argv[1])))  # as if they were not installed
import_module("benchmarks.silo.__main__")
import_module("benchmarks.silo.gpu")
print(json.dumps([name for name, module in sys.modules.items() if module is not None]))
"""


def installed_with_wheels() -> set[str]:
    """Return the packages that an image for GPUs has with ``make gpu-wheels``, by their canonical names."""
    spec = spec_from_file_location("gpu_wheels", ROOT / "packaging" / "gpu_wheels.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    found: set[str] = set()
    module._closure("atoll", module.EXTRAS, frozenset(), found)
    return found


def test_the_benchmark_starts_with_what_an_image_for_gpus_has_and_the_wheels() -> None:
    """Neither test tools nor the server's libraries are there; torchao is, but only the rows of float8 load it."""
    there = installed_with_wheels()
    provided = packages_distributions().items()
    missing = [name for name, owners in provided if not there & {canonicalize_name(owner) for owner in owners}]
    assert {"pytest", "sqlalchemy", "sklearn"} <= set(missing)
    command = [sys.executable, "-c", _STARTED, json.dumps(missing)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    loaded = set(json.loads(ended.stdout))
    assert {"benchmarks.silo.gpu.toggles", "pydantic", "blake3"} <= loaded
    assert "torchao" not in loaded
