"""Training for ``diloco``: texts, a synchronously trained start, and a federation of real processes for each case."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from atoll.datacenter.data.text import find_files
from atoll.datacenter.data.tokenise import tokenise
from atoll.datacenter.data.tokenizer import open_tokenizer
from atoll.datacenter.demo.evaluator import HELD_OUT_VARIABLE, JOB_VARIABLE, held_out_loss
from atoll.datacenter.demo.shards import held_out_rows, write_shards
from atoll.datacenter.federation.initial import write_initial
from atoll.datacenter.job import load_job
from atoll.datacenter.models import spec_of
from benchmarks.federation import WAIT_S, federation, participant_id, python_path
from benchmarks.options import progress
from benchmarks.starting import ATOLL

SILOS = 2
SEQUENCE = 64
BATCH = 8
"""Sequences of a step in each silo."""
INITIAL = "initial.safetensors"
WARM_SEED = 1000
"""Added to the seed while the start is trained, so that the text has another order afterwards."""
CONSTANT, TO_ZERO = 'decay = "none"', "floor = 0.0"
_ROWS_AT_ONCE = 200
_EVALUATOR = "text=atoll.datacenter.demo.evaluator:evaluate"
_JOB = """
[job]
name = "text"
steps = {steps}
seed = {seed}
[model]
vocab = 256
layers = 2
dim = {dim}
heads = 4
{weights}
[data]
source = "tokens"
path = "{text}.tokens"
[batch]
sequence = {sequence}
global_batch = {batch}
micro_batch = {micro_batch}
[optimiser]
lr = {lr}
[schedule]
warmup_steps = {warmup}
{schedule}
[data_parallel]
method = "ddp"
[metrics]
every_steps = {inner_steps}
[federation]
inner_steps = {inner_steps}
"""
_SERVERS = """
[job]
name = "text"
rounds = {rounds}
[model]
initial = "initial.safetensors"
[cohort]
size = {silos}
[straggler]
report_window_s = 3600
[aggregation]
max_weight = 10_000_000
encoding = "{encoding}"
[optimiser]
{outer}
[evaluation]
server = "text"
before_training = false
final = false
"""


@dataclass(frozen=True)
class Size:
    """Settings of the experiment.

    Attributes:
        warm_steps: synchronous steps before the comparison.
        rounds: after the start.
        inner_steps: of each round.
        dim: width of the model.
        rows: of ``SEQUENCE`` + 1 held-out bytes, for each point of a curve.
        end_rows: for the last model. Python 3.11 holds out 613,878 bytes in all.
        warm_lr: learning rate before the comparison.
        lr: peak of the inner learning rate in the comparison.
        outer: the server's ``[optimiser]``.
    """

    warm_steps: int
    rounds: int
    inner_steps: int
    dim: int
    rows: int
    end_rows: int
    warm_lr: float
    lr: float
    outer: str

    @property
    def steps(self) -> int:
        """Steps after the start."""
        return self.rounds * self.inner_steps


@dataclass(frozen=True)
class Case:
    """One way to train.

    Attributes:
        name: in words.
        encoding: of updates; empty: gradients are averaged in every step.
    """

    name: str
    encoding: str = ""

    @property
    def in_step(self) -> bool:
        """Whether it is the baseline: one job over all ranks."""
        return not self.encoding


@dataclass(frozen=True)
class Trained:
    """Result of a case.

    Attributes:
        curve: held-out loss at the start and after each round, on ``Size.rows`` rows.
        loss: of the last model, on ``Size.end_rows`` rows.
    """

    curve: list[float]
    loss: float


class Bench:
    """The common parts of all cases of one seed: text, and a synchronously trained start.

    Args:
        folder: for all files.
        size: of the experiment.
        seed: of first weights and of the order of text.
    """

    def __init__(self, folder: Path, size: Size, seed: int) -> None:
        self._folder, self._size, self._seed = folder, size, seed
        shards = write_shards(folder, (1,) * SILOS)
        for name, paths in {"text": shards, **{shard.name: [shard] for shard in shards}}.items():
            tokenise(find_files(paths), open_tokenizer("bytes", folder), folder / f"{name}.tokens")
        np.save(folder / "held-out.npy", held_out_rows(size.rows, SEQUENCE + 1))
        self._environment = {
            HELD_OUT_VARIABLE: str(folder / "held-out.npy"),
            JOB_VARIABLE: str(folder / "job.toml"),
            "OMP_NUM_THREADS": "1",  # silos share the machine here; by default each would use all of it
        }
        self.elements = self._warm_up()
        self.start = Trained([self._judged(folder / INITIAL, size.rows)], self._judged(folder / INITIAL, size.end_rows))
        """The model from which all cases continue."""

    def _warm_up(self) -> int:
        """Train the federation's first model synchronously at a constant rate; return its number of elements."""
        steps = self._size.warm_steps
        warm = replace(self._size, rounds=1, inner_steps=steps, lr=self._size.warm_lr)
        keep = f'[checkpoint]\nfolder = "warm"\nevery_steps = {steps}\n'
        self._write("warm.toml", job_text(warm, "text", SILOS, WARM_SEED + self._seed, schedule=CONSTANT) + keep)
        self._silo("train", "warm.toml", "--nproc", str(SILOS))
        self._silo("export", "warm.toml", "--out", "start")
        self._write("job.toml", job_text(self._size, "text", SILOS, self._seed, weights='weights = "start"'))
        return write_initial(load_job(self._folder / "job.toml"), self._folder / INITIAL).size

    def train(self, case: Case) -> Trained:
        """Continue from the start in one way."""
        size = self._size
        silos = [("text", SILOS)] if case.in_step else [(f"text-{number}", 1) for number in range(SILOS)]
        self._write("server.toml", server_text(size, case, len(silos)))
        with federation(
            clients=0, tls=False, options=["--evaluator", _EVALUATOR], variables=self._environment
        ) as place:
            for number, (text, ranks) in enumerate(silos):
                name = f"{case.name.replace(' ', '-')}-{number}"
                file = self._write(f"{name}.toml", job_text(size, text, ranks, self._seed))
                join = ["silo", "join", str(file), "--nproc", str(ranks), "--max-rounds", str(size.rounds)]
                join += ["--server", place.address, "--insecure", "--participant", participant_id(number)]
                join += ["--state", str(self._folder / f"state-{name}"), "--logs", str(self._folder / f"logs-{name}")]
                place.start_process([*ATOLL, *join], name)
            run = place.call("run", "submit", str(self._folder / "server.toml"))["run"]
            place.command("run", "watch", run)
            curve = _curve(place.call("run", "show", run), size)
            place.command("run", "model", run, "-o", str(self._folder / "trained.safetensors"))
        loss = self._judged(self._folder / "trained.safetensors", size.end_rows)
        progress(f"seed {self._seed}, {case.name}: {', '.join(f'{one:.4f}' for one in curve)}; in the end {loss:.4f}")
        return Trained([*self.start.curve, *curve], loss)

    def _judged(self, model: Path, rows: int) -> float:
        """Mean cross-entropy over rows of held-out text, in nats per byte."""
        spec = spec_of(load_job(self._folder / "job.toml").model)
        module, weights, text = spec.build(), load_file(model), held_out_rows(rows, SEQUENCE + 1)
        parts = [text[start : start + _ROWS_AT_ONCE] for start in range(0, rows, _ROWS_AT_ONCE)]
        losses = [held_out_loss(spec, module, weights, torch.from_numpy(part).long()) for part in parts]
        return float(np.average(losses, weights=[len(part) for part in parts]))

    def _silo(self, *arguments: str) -> None:
        """Run ``atoll silo`` in the folder.

        Raises:
            RuntimeError: if it fails.
        """
        environment = {**os.environ, **self._environment, "PYTHONPATH": python_path()}
        command = [*ATOLL, "silo", *arguments]
        done = subprocess.run(
            command, cwd=self._folder, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        if done.returncode:
            raise RuntimeError(f"atoll silo {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}")

    def _write(self, name: str, text: str) -> Path:
        (self._folder / name).write_text(text)
        return self._folder / name


def job_text(size: Size, text: str, ranks: int, seed: int, *, schedule: str = TO_ZERO, weights: str = "") -> str:
    """The job file of a silo with this many ranks, on one of the texts."""
    return _JOB.format(
        steps=size.steps,
        seed=seed,
        dim=size.dim,
        weights=weights,
        text=text,
        sequence=SEQUENCE,
        batch=BATCH * ranks,
        micro_batch=BATCH,
        lr=size.lr,
        warmup=max(1, min(100, size.steps // 10)),
        schedule=schedule,
        inner_steps=size.inner_steps,
    )


def server_text(size: Size, case: Case, silos: int) -> str:
    """The server's job file."""
    outer = 'name = "fedavg"' if case.in_step else size.outer
    return _SERVERS.format(rounds=size.rounds, silos=silos, encoding=case.encoding or "float32", outer=outer)


def _curve(shown: dict[str, object], size: Size) -> list[float]:
    rounds = shown["rounds"]
    assert isinstance(rounds, list)
    losses = [float(entry["metrics"]["server/loss"]) for entry in rounds if entry["phase"] == "released"]
    if len(losses) != size.rounds:
        raise RuntimeError(f"{len(losses)} of {size.rounds} rounds were judged: {shown}"[:4000])
    return losses
