"""A parameter server on a GPU, with workers on others, trains what it trains on CPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from atoll.datacenter.train.asynchrony.run import WEIGHTS
from tests.datacenter.gpu.test_training import TOLERANCE
from tests.patience import WAIT_S


def served(folder: Path, ranks: int, visible: str | None) -> dict[str, torch.Tensor]:
    """Run the job of ``serving``, and return its weights."""
    folder.mkdir()
    run = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    command = [sys.executable, *run, "-m", "tests.datacenter.gpu.serving", str(folder)]
    hidden = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    subprocess.run(command, check=True, timeout=WAIT_S, env=os.environ | hidden)
    return load_file(folder / WEIGHTS)


def test_weights_are_those_of_ranks_on_cpus(tmp_path: Path) -> None:
    """With up to three workers: their transfers overlap on the server's GPU."""
    ranks = min(4, torch.cuda.device_count())
    if ranks < 2:
        pytest.skip("needs two GPUs")
    on_gpus, on_cpus = (served(tmp_path / name, ranks, hidden) for name, hidden in (("gpus", None), ("cpus", "")))
    assert on_gpus.keys() == on_cpus.keys()
    for name, value in on_gpus.items():
        torch.testing.assert_close(value, on_cpus[name], rtol=0, atol=TOLERANCE, msg=name)
