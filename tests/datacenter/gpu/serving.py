"""A job with a parameter server on torchrun's ranks; ``-m tests.datacenter.gpu.serving FOLDER`` leaves its weights.

Ranks that see GPUs exchange vectors over NCCL, and the others over gloo.
"""

from __future__ import annotations

import sys
from pathlib import Path

from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import join_world
from atoll.datacenter.train.asynchrony import train_asynchronously
from atoll.datacenter.train.pulse import Unwatched
from tests.patience import WAIT_S

JOB = SiloJob.model_validate(
    {
        "job": {"name": "served", "steps": 4},
        "model": {"layers": 2, "dim": 64, "heads": 4, "ffn_dim": 128},
        "batch": {"sequence": 32, "global_batch": 6, "micro_batch": 2},
        "optimiser": {"epsilon": 1e-6},  # see ``tests.datacenter.training.SMALL``
        "asynchrony": {"staleness": 0, "apply": "clock"},
        "checkpoint": {"folder": "."},
        "faults": {"collective_timeout_s": WAIT_S},
    }
)

if __name__ == "__main__":
    with join_world(WAIT_S) as joined:
        train_asynchronously(JOB, Path(sys.argv[1]), joined, Unwatched(), console=False)
