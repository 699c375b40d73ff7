"""The federation of the demonstration: one server, two silos of two ranks, two edge clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file

from atoll.datacenter.demo.evaluator import HELD_OUT_VARIABLE, JOB_VARIABLE, held_out_loss
from atoll.datacenter.demo.jobs import RANKS, SEQUENCE, SERVER_JOB, SHARES, Plan, job_name, write_jobs
from atoll.datacenter.demo.operator import Operator
from atoll.datacenter.demo.sample import write_on
from atoll.datacenter.demo.shards import held_out_rows, write_shards
from atoll.datacenter.federation.initial import write_initial
from atoll.datacenter.job import load_job
from atoll.datacenter.models import spec_of
from atoll.processes import Processes
from atoll.processes.demonstration import start_participant, start_server

if TYPE_CHECKING:
    from torch import Tensor, nn

    from atoll.datacenter.models.spec import ModelSpec

HELD_OUT_ROWS = 96
SAMPLE_BYTES = 240
SAMPLE_START = b"def "
TEMPERATURE = 0.7
_KINDS = ("silo", "silo", "edge", "edge")


@dataclass(frozen=True)
class Federation:
    """Processes and files of the demonstration. All files are below ``folder``."""

    folder: Path
    plan: Plan
    processes: Processes

    @property
    def server(self) -> Path:
        """The server's data directory."""
        return self.folder / "server"

    def prepare(self) -> None:
        """Write text, job files, initial weights and held-out rows."""
        write_shards(self.folder, SHARES)
        write_jobs(self.folder, self.plan)
        np.save(self.folder / "held-out.npy", held_out_rows(HELD_OUT_ROWS, SEQUENCE + 1))
        write_initial(load_job(self.folder / job_name(0)), self.folder / "init.safetensors")

    def start_server(self) -> Operator:
        """Start the server and wait until it serves.

        Raises:
            ChildFailedError: if it ends, or does not serve in time.
        """
        options = ["--port", str(self.plan.port), "--workers", "1"]
        options += ["--evaluator", "text=atoll.datacenter.demo.evaluator:evaluate"]
        held_out, job = self.folder / "held-out.npy", self.folder / job_name(0)
        given = {HELD_OUT_VARIABLE: str(held_out), JOB_VARIABLE: str(job)}
        start_server(self.processes, self.server, options, given)
        return Operator(self.server)

    def start_participants(self, operator: Operator) -> None:
        """Start silos and clients, each with its own token."""
        for kind in dict.fromkeys(_KINDS):
            numbers = [number for number, found in enumerate(_KINDS) if found == kind]
            words = ("token", "new", "--organisation", "demo", "--kind", kind, "--count", str(len(numbers)))
            tokens = operator.do(*words, "--json")["tokens"]
            for number, token in zip(numbers, tokens, strict=True):
                self._start(number, kind, token)

    def _start(self, number: int, kind: str, token: str) -> None:
        job = self.folder / job_name(number)
        if kind == "silo":
            words = ["silo", "join", str(job), "--nproc", str(RANKS), "--logs", str(self.folder / f"ranks-{number}")]
        else:
            words = ["client", "start", "atoll.datacenter.demo.participant:Text", "--arg", f"job={job}"]
        start_participant(self.processes, f"{kind}-{number}", words, self.folder / f"state-{number}", token)

    def submit(self, operator: Operator) -> str:
        """Submit the job, and return the id of its run."""
        return str(operator.do("run", "submit", str(self.folder / SERVER_JOB), "--json")["run"])


@dataclass(frozen=True)
class Judge:
    """Evaluates models on held-out text and generates text with them, in this process.

    Attributes:
        spec: spec of the model.
        module: module built by the spec.
        rows: held-out text, int64 ``[rows, length]``.
    """

    spec: ModelSpec
    module: nn.Module
    rows: Tensor

    @classmethod
    def of(cls, folder: Path) -> Judge:
        """Read what ``Federation.prepare`` has written."""
        torch.set_num_threads(1)
        spec = spec_of(load_job(folder / job_name(0)).model)
        rows = torch.from_numpy(np.load(folder / "held-out.npy", allow_pickle=False)).long()
        return cls(spec, spec.build(), rows)

    @property
    def parameters(self) -> int:
        """Number of parameters of the model."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    def loss(self, model: Path) -> float:
        """Return the held-out loss of a model in a safetensors file, in nats per byte."""
        return held_out_loss(self.spec, self.module, _weights(model), self.rows)

    def sample(self, model: Path, seed: int) -> str:
        """Return text written by a model."""
        self.module.load_state_dict(_weights(model))
        return write_on(self.module, SAMPLE_START, SAMPLE_BYTES, SEQUENCE, TEMPERATURE, seed)


def _weights(model: Path) -> Mapping[str, Tensor]:
    weights: Mapping[str, Tensor] = load_file(model)
    return weights
