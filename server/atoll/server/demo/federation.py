"""A federation on this machine: one server, several clients, and a job."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from atoll.processes import Processes
from atoll.processes.demonstration import ONE_THREAD, Ready, start_participant, start_server, write_secret
from atoll.server.demo.data import MIN_EXAMPLES, load_digits, split
from atoll.server.demo.evaluator import HELD_OUT_VARIABLE
from atoll.server.demo.model import write_initial_model

ALPHA = 0.5
_JOB = """\
[job]
name = "digits"
rounds = {rounds}

[model]
initial = "init.safetensors"

[cohort]
size = {clients}
seed = {seed}

[straggler]
report_window_s = 30

[optimiser]
name = "fedavgm"
momentum = 0.5

[training]
epochs = 5
batch_size = 16
lr = 0.05
momentum = 0.9

[evaluation]
server = "digits"
"""
_OF_MANY = """\
[job]
name = "{name}"
rounds = {rounds}

[model]
initial = "init.safetensors"

[cohort]
sampler = "poisson"  # each participant by itself, with the same chance
rate = 0.5
size = {expected}
min_available = {clients}

[straggler]
report_window_s = {window_s}

[aggregation]
weighting = "uniform"

[optimiser]
name = "fedavgm"
momentum = 0.5
lr = {lr}

[training]
epochs = 3
batch_size = 32
lr = 0.3
momentum = 0.0

[evaluation]
server = "digits"
before_training = false
final = false
every = 0
"""
_PRIVACY = """
[privacy]
population = "digits"
epsilon = 8.0
delta = 1e-5
clip = 0.3
"""
_LIMITS = """\
[limits]
enrolments_per_minute = 1000  # all participants come from this machine at once
"""
POPULATION = "digits"
PRIVATE_WINDOW_S = 3
"""Report window of each private round: the participants need about a second."""
CROWDS = 2
"""Number of processes that share the participants of the private demo."""
LEAST_OF_MANY = 5
"""Minimum number of examples of each participant."""


@dataclass(frozen=True)
class Plan:
    """The parameters of a demo; ``port`` 0 picks free ports.

    ``private`` runs the same federation of many participants twice, without and with privacy.
    """

    clients: int
    rounds: int
    seed: int
    port: int = 0
    workers: int = 1
    private: bool = False


@dataclass(frozen=True)
class Federation:
    """Runs one demo. All files are in ``directory``: data, logs, the server's state, each client's state."""

    directory: Path
    plan: Plan
    processes: Processes

    @property
    def job(self) -> Path:
        """The job file."""
        return self.directory / "job.toml"

    @property
    def private_job(self) -> Path:
        """The job file with privacy, if the plan has one."""
        return self.directory / "private.toml"

    def prepare(self) -> None:
        """Write shards, held-out data, first weights and the job file."""
        plan, digits = self.plan, load_digits()
        least = LEAST_OF_MANY if plan.private else MIN_EXAMPLES
        shards = split(digits, plan.clients, ALPHA, plan.seed, least)
        for number, shard in enumerate(shards.clients):
            shard.write(self.directory / f"shard-{number}.npz", plan.seed * 1000 + number)
        shards.held_out.write(self.directory / "held-out.npz", plan.seed)
        write_initial_model(self.directory / "init.safetensors", plan.seed)
        if not plan.private:
            self.job.write_text(_JOB.format(**vars(plan)), encoding="utf-8")
            return
        numbers = {"rounds": plan.rounds, "clients": plan.clients, "expected": (plan.clients + 1) // 2}
        self.job.write_text(_OF_MANY.format(name="digits", lr=1.0, window_s=60, **numbers), encoding="utf-8")
        private = _OF_MANY.format(name="digits-private", lr=3.0, window_s=PRIVATE_WINDOW_S, **numbers) + _PRIVACY
        self.private_job.write_text(private, encoding="utf-8")

    def start_server(self) -> Ready:
        """Start the server and wait until it serves.

        Raises:
            ChildFailedError: if it ends, or does not serve in time.
        """
        options = ["--port", str(self.plan.port), "--workers", str(self.plan.workers)]
        if self.plan.private:
            limits = self.directory / "server.toml"
            limits.write_text(_LIMITS, encoding="utf-8")
            options += ["--config", str(limits)]
        options += ["--evaluator", "digits=atoll.server.demo.evaluator:evaluate"]
        environment = {HELD_OUT_VARIABLE: str(self.directory / "held-out.npz")}
        return start_server(self.processes, self.directory / "server", options, environment)

    def start_client(self, number: int, join_token: str) -> None:
        """Start one client, which enrols with its token."""
        data = self.directory / f"shard-{number}.npz"
        words = ("client", "start", "atoll.client.demo.digits:Digits", "--arg", f"data={data}")
        name = f"client-{number}"
        start_participant(self.processes, name, words, self.directory / name, join_token)

    def start_crowds(self, join_tokens: Sequence[str]) -> None:
        """Start all participants in few processes; they enrol with their tokens."""
        for crowd in range(min(CROWDS, len(join_tokens))):
            state = self.directory / f"crowd-{crowd}"
            lines = [f"{number} {token}\n" for number, token in enumerate(join_tokens) if number % CROWDS == crowd]
            tokens = write_secret(state, "join-tokens", "".join(lines))
            command = [sys.executable, "-m", "atoll.client.demo.crowd", str(self.directory), str(state), str(tokens)]
            self.processes.start(f"crowd-{crowd}", command, ONE_THREAD)
