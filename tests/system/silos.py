"""Silos of the system tests: real ``atoll silo join`` processes, whose ranks a test may stop at a point and kill."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from atoll.datacenter.federation.initial import write_initial
from atoll.datacenter.job import SiloJob
from atoll.formats.safetensors import read_header
from atoll.wire.views import tensor_views
from tests.patience import WAIT_S
from tests.system.operators import job_toml
from tests.system.processes import ATOLL, HERE, Nursery, Process
from tests.system.servers import Server

Sections = Mapping[str, Mapping[str, Any]]
STEPS, GLOBAL_BATCH, SEQUENCE = 4, 4, 16
JOB: Sections = {
    "job": {"name": "silo", "steps": 1000, "seed": 7},
    "model": {"layers": 2, "dim": 32, "heads": 4, "kv_heads": 2, "ffn_dim": 64},
    "batch": {"sequence": SEQUENCE, "global_batch": GLOBAL_BATCH, "micro_batch": 2},
    "optimiser": {"lr": 1e-3},
    "schedule": {"decay": "none"},
    "federation": {"inner_steps": STEPS},
}
"""A model of some 30,000 elements, which two ranks can share in any way."""
OUTER: Sections = {
    "aggregation": {"max_weight": 1_000_000},
    "optimiser": {"name": "fedavgm", "nesterov": True, "momentum": 0.9, "lr": 0.7},
}
"""DiLoCo's, for the server's job."""


def job_of(**sections: Mapping[str, Any]) -> Sections:
    """``JOB`` with additional or replaced keys in these sections."""
    return {name: {**JOB.get(name, {}), **sections.get(name, {})} for name in {**JOB, **sections}}


def outer_job(name: str, rounds: int, silos: int, **sections: Mapping[str, Any]) -> str:
    """The server's job: every silo in every round."""
    cohort = {"size": silos, "quorum": silos, "min_available": silos}
    return job_toml(job={"name": name, "rounds": rounds}, cohort=cohort, **{**OUTER, **sections})


def initial_of(job: Sections, folder: Path) -> dict[str, npt.NDArray[Any]]:
    """The initial model of a federation of such silos, by tensor name."""
    path = folder / "initial.safetensors"
    write_initial(SiloJob.model_validate(job), path)
    layout, start = read_header(path)
    return dict(tensor_views(layout, memoryview(path.read_bytes())[start:]))


class Silo:
    """One silo: its folder with a job file and a state, and the launcher that works in it, if there is one now.

    Args:
        nursery: holds the processes.
        name: of folder and logs.
        server: that it joins.
        ranks: processes.
        job: its job file's sections.
        options: further ones of ``atoll silo join``.
        token: to enrol with; a new one of the server, if there is none.
    """

    def __init__(
        self, nursery: Nursery, name: str, server: Server, ranks: int, job: Sections, *options: str, token: str = ""
    ) -> None:
        self.name, self._nursery, self._ranks, self._options = name, nursery, ranks, options
        self.folder = nursery.folder / name
        self.folder.mkdir()
        self.job_file = self.folder / "job.toml"
        self.job_file.write_text(_toml(job), encoding="utf-8")
        self.state = self.folder / "state"
        self._token = token or server.operator.tokens(1)[0]
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        assert self._process is not None, f"silo {self.name} was not started"
        return self._process

    @property
    def participant(self) -> str:
        """Its id, once it has enrolled."""
        return str(json.loads((self.state / "identity.json").read_text())["participant"])

    def start(self, *holds: Hold) -> Silo:
        """Start it, or start it again in the same folder; ranks are held where ``holds`` say."""
        join = (sys.executable, str(HERE / "held_join.py")) if holds else (*ATOLL, "silo", "join")
        command = (*join, str(self.job_file), "--nproc", str(self._ranks))
        options = ("--json", "--state", str(self.state), "--join", self._token, *self._options)
        env = {"OMP_NUM_THREADS": "1", "HOLD": json.dumps([hold.place for hold in holds])}
        self._process = self._nursery.start((*command, *options), self.name, env=env)
        return self

    def outcome(self) -> dict[str, Any]:
        """Wait for its end; return its last message."""
        return self._said("outcome")[-1]

    def reported(self, round_: int) -> None:
        """Wait until it has reported a round."""
        self.event("reported", round=round_)

    def event(self, name: str, **fields: object) -> dict[str, Any]:
        """The first event of this process that has the name and these fields, once it has happened."""

        def choose(lines: list[str]) -> dict[str, Any] | None:
            del lines
            wanted = {"event": name, **fields}.items()
            return next((one for one in self._said("event") if wanted <= one.items()), None)

        return self.process.wait_for(choose, f"event {name} {fields or ''}", WAIT_S)

    def _said(self, key: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.process.lines if line.startswith("{")]
        return [one for one in found if key in one]


class Hold:
    """A point at which a rank stops: pass it to ``Silo.start``, then ``wait`` for the rank.

    Args:
        fifo: made here; gone once a rank was held, so that the next attempt is not.
        rank: which.
        step: before or in which step.
        phase: as ranks' pulses name it.
    """

    def __init__(self, fifo: Path, rank: int, step: int, phase: str) -> None:
        os.mkfifo(fifo)
        self._fifo = fifo
        self.place = (rank, step, phase, str(fifo))

    def wait(self) -> int:
        """Wait until the rank is held; return its process, which SIGCONT continues."""
        descriptor = os.open(self._fifo, os.O_RDONLY | os.O_NONBLOCK)
        try:
            ready, _, _ = select.select([descriptor], [], [], WAIT_S)
            assert ready, f"no rank was held at {self.place}"
            self._fifo.unlink()
            return int(os.read(descriptor, 32))
        finally:
            os.close(descriptor)


def _toml(job: Sections) -> str:
    parts = (
        "\n".join((f"[{name}]", *(f"{key} = {_value(value)}" for key, value in keys.items())))
        for name, keys in job.items()
    )
    return "\n\n".join(parts) + "\n"


def _value(value: Any) -> str:
    """TOML and JSON write numbers, texts, booleans and lists alike."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value)
