"""Training on a GPU makes the steps that it makes on a CPU, technique by technique."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from atoll.datacenter.checkpoint.folder import step_folder, steps_in
from atoll.datacenter.checkpoint.manifest import read_manifest
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import join_world
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import train
from tests.datacenter.gpu.steps import CASES, sections_of, steps_of
from tests.patience import WAIT_S

TOLERANCE = 2e-5
"""Of losses and of parameters after the steps: sums are added in another order."""
MUON_TOLERANCE = 3e-4
"""Muon makes matrices orthogonal in bfloat16, where another order of sums shows."""
LOSS_OFF = {"bfloat16": 5e-3, "float16": 5e-3, "float8": 5e-2}
"""Relative to float32: how far the loss of each step may be off."""


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The steps of all cases, by a process that sees no GPU."""
    file = tmp_path_factory.mktemp("cpu") / "steps.pt"
    command = [sys.executable, "-m", "tests.datacenter.gpu.steps", str(file)]
    subprocess.run(command, check=True, timeout=WAIT_S, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    found: dict[str, Any] = torch.load(file, weights_only=True)
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_gpu_makes_the_steps_of_the_cpu(name: str, on_cpu: dict[str, Any]) -> None:
    found, wanted = steps_of(sections_of(CASES[name])), on_cpu[name]
    tolerance = MUON_TOLERANCE if name == "muon" else TOLERANCE
    torch.testing.assert_close(found["losses"], wanted["losses"], rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(found["norms"], wanted["norms"], rtol=1e-4, atol=0)
    assert found["parameters"].keys() == wanted["parameters"].keys()
    for parameter, value in found["parameters"].items():
        torch.testing.assert_close(value, wanted["parameters"][parameter], rtol=0, atol=tolerance, msg=parameter)


@pytest.mark.parametrize(
    "precision",
    [
        {"compute": "bfloat16"},
        {"compute": "float16"},
        {"compute": "float8"},
        {"compute": "float8", "float8_scaling": "row"},
        {"compute": "float8", "float8_gather": True},
    ],
    ids=lambda section: " ".join(map(str, section.values())),
)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_losses_of_smaller_formats_are_near(
    precision: dict[str, Any], on_cpu: dict[str, Any], *, compiled: bool
) -> None:
    case = {"precision": precision, "data_parallel": {"method": "zero3"}, "memory": {"compile": compiled}}
    found = steps_of(sections_of(case))["losses"]
    torch.testing.assert_close(found, on_cpu["zero3"]["losses"], rtol=LOSS_OFF[precision["compute"]], atol=0)


class StopsAfter(Unwatched):
    """Asks for a stop after a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def stops_after(self, step: int) -> bool:
        return step == self._step


def job_of(folder: Path) -> SiloJob:
    return SiloJob.model_validate(
        sections_of(
            {
                "job": {"steps": 8},
                "model": {"vocab": 256},
                "precision": {"compute": "bfloat16"},
                "data_parallel": {"method": "zero3"},
                "checkpoint": {"folder": str(folder), "every_steps": 2},
            }
        )
    )


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Deterministic kernels, so that a run can be repeated to the bit."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


@pytest.mark.usefixtures("exact")
def test_a_job_that_was_stopped_goes_on_with_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    with join_world(WAIT_S) as world:
        train(job_of(tmp_path / "whole"), tmp_path, world, Unwatched(), console=False)
        train(job_of(tmp_path / "parts"), tmp_path, world, StopsAfter(5), console=False)
        assert steps_in(tmp_path / "parts")[-1] == 5
        train(job_of(tmp_path / "parts"), tmp_path, world, Unwatched(), console=False)
        whole, parts = (read_state(tmp_path / name) for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    for name, digest in whole.items():
        assert parts[name] == digest, name


def read_state(folder: Path) -> dict[str, str]:
    """Return the digests of the files of the last checkpoint."""
    manifest = read_manifest(step_folder(folder, 8))
    return {name: record.digest for name, record in manifest.files.items()}
