"""What two silos that meet every 500 steps lose to training in step, and what encodings of their updates lose.

A byte-level language model on the standard library's text; half of it in each of two silos, or all of it in one job of
two ranks that average gradients in every step: as many steps, sequences and tokens in all. Models are judged by the
server on text that nobody trains on. The curves are drawn to benchmarks/results/silo-diloco.svg.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure as Drawing

from atoll.datacenter.demo.evaluator import HELD_OUT_VARIABLE, JOB_VARIABLE
from atoll.datacenter.demo.shards import held_out_rows, write_shards
from atoll.datacenter.federation.initial import write_initial
from atoll.datacenter.job import load_job
from atoll.wire.encoding import Encoding, payload_bytes
from benchmarks.federation import ATOLL, federation, participant_id
from benchmarks.figures import RESULTS, Figure
from benchmarks.options import progress

COMMAND = "python -m benchmarks.silo diloco"
INNER_STEPS = 500
SILOS = 2
INT8_WITHIN, INT4_WITHIN, STEP_WITHIN = 1.005, 1.01, 1.01
FEWER_BYTES = 1000.0
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
[data]
source = "text"
path = "{text}"
[batch]
sequence = 64
global_batch = {batch}
micro_batch = 8
[optimiser]
lr = 3e-3
[schedule]
warmup_steps = {warmup}
floor = 0.05
[data_parallel]
method = "ddp"
[federation]
inner_steps = {inner_steps}
[metrics]
every_steps = {inner_steps}
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
_DILOCO = 'name = "fedavgm"\nmomentum = 0.9\nnesterov = true\nlr = 0.7'


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


CASES = (Case("in step"), Case("float32", "float32"), Case("int8", "int8"), Case("int4", "int4"))


@dataclass(frozen=True)
class Size:
    """Of the experiment."""

    rounds: int
    inner_steps: int
    dim: int


def run(smoke: bool) -> list[Figure]:
    """All four; some minutes."""
    size = Size(2, 3, 32) if smoke else Size(10, INNER_STEPS, 64)
    bytes_sent = _bytes_sent(size)
    if smoke:
        (ended,) = [_train(case, size)[-1] for case in CASES if case.name == "int4"]
        return [Figure.stated("held-out loss, int4", ended, "nats", COMMAND), *_bytes(bytes_sent, size, smoke=True)]
    curves = {case.name: _train(case, size) for case in CASES}
    _draw(curves, size, bytes_sent, RESULTS / "silo-diloco.svg")
    ends = {name: curve[-1] for name, curve in curves.items()}
    return [*_losses(ends, size), *_bytes(bytes_sent, size, smoke=False)]


def _losses(ends: dict[str, float], size: Size) -> list[Figure]:
    steps = size.rounds * size.inner_steps
    pairs = (
        ("int4", "in step", STEP_WITHIN),
        ("int8", "float32", INT8_WITHIN),
        ("int4", "float32", INT4_WITHIN),
    )
    found = [Figure.stated(f"held-out loss after {steps} steps, in step", ends["in step"], "nats", COMMAND)]
    found += [Figure.stated("  float32", ends["float32"], "nats", COMMAND, beside=ends["in step"])]
    for name, other, bound in pairs:
        beside = {"limit": ends[other], "target": bound}
        found.append(Figure.within(f"  {name} beside {other}", ends[name], "nats", COMMAND, **beside))
    return found


def _bytes_sent(size: Size) -> dict[str, float]:
    """What a silo sends for each token, by case: an update for each round, or its part of a ring in every step.

    A ring all-reduce of N float32 elements over P sends 2 (P - 1) / P x 4 N bytes (Patarasuk and Yuan 2009).
    """
    with tempfile.TemporaryDirectory() as folder:
        elements = _initial(Path(folder), size)
    tokens = 8 * 64
    found = {"in step": 2 * (SILOS - 1) / SILOS * 4 * elements / tokens}
    for case in CASES:
        if not case.in_step:
            encoding = Encoding[{"int8": "INT8_BLOCK", "int4": "INT4_BLOCK"}.get(case.encoding, "FLOAT32")]
            found[case.name] = payload_bytes(encoding, elements) / (tokens * size.inner_steps)
    return found


def _bytes(sent: dict[str, float], size: Size, *, smoke: bool) -> list[Figure]:
    fewer = sent["in step"] / sent["int4"]
    what = f"bytes that a silo sends for a token, in step / int4, H = {size.inner_steps}"
    received = sent["float32"]  # the model comes as it is
    both = 2 * sent["in step"] / (sent["int4"] + received)
    return [
        Figure.stated(what, fewer, "times", COMMAND)
        if smoke
        else Figure.at_least(what, fewer, "times", FEWER_BYTES, COMMAND),
        Figure.stated("  sent and received, models in float32", both, "times", COMMAND),
    ]


def _train(case: Case, size: Size) -> list[float]:
    """Held-out loss after each round."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _initial(folder, size)
        shards = write_shards(folder, (1,) * SILOS)
        if case.in_step:
            for shard in shards:
                shutil.copytree(shard, folder / "text", dirs_exist_ok=True)
        np.save(folder / "held-out.npy", held_out_rows(512, 65))
        os.environ[HELD_OUT_VARIABLE], os.environ[JOB_VARIABLE] = str(folder / "held-out.npy"), str(folder / "job.toml")
        curve = _federation(case, size, folder)
    progress(f"{case.name}: {', '.join(f'{one:.4f}' for one in curve)}")
    return curve


def _federation(case: Case, size: Size, folder: Path) -> list[float]:
    evaluator = "text=atoll.datacenter.demo.evaluator:evaluate"
    with federation(clients=0, tls=False, options=["--evaluator", evaluator]) as place:
        place.environment["OMP_NUM_THREADS"] = "1"  # silos share the machine here; each would take all of it
        silos = [("text", SILOS)] if case.in_step else [(f"text-{number}", 1) for number in range(SILOS)]
        for number, (text, ranks) in enumerate(silos):
            _job(folder / f"silo-{number}.toml", size, text=text, batch=8 * ranks, seed=number)
            access = ["--server", place.address, "--insecure", "--participant", participant_id(number)]
            access += ["--state", str(folder / f"state-{number}"), "--logs", str(folder / f"logs-{number}")]
            join = ["silo", "join", str(folder / f"silo-{number}.toml"), "--nproc", str(ranks), *access]
            place.start_process([*ATOLL, *join, "--max-rounds", str(size.rounds)], f"silo-{number}")
        outer = 'name = "fedavg"' if case.in_step else _DILOCO
        text = _SERVERS.format(rounds=size.rounds, silos=len(silos), encoding=case.encoding or "float32", outer=outer)
        (folder / "server.toml").write_text(text)
        run_id = place.call("run", "submit", str(folder / "server.toml"))["run"]
        place.command("run", "watch", run_id)
        shown = place.call("run", "show", run_id)
    return _curve(shown, size)


def _curve(shown: dict[str, object], size: Size) -> list[float]:
    rounds = shown["rounds"]
    assert isinstance(rounds, list)
    losses = [float(entry["metrics"]["server/loss"]) for entry in rounds if entry["phase"] == "released"]
    if len(losses) != size.rounds:
        raise RuntimeError(f"{len(losses)} of {size.rounds} rounds were judged: {shown}"[:4000])
    return losses


def _initial(folder: Path, size: Size) -> int:
    """The model that all start from; its elements."""
    _job(folder / "job.toml", size, text="text", batch=8, seed=0)
    return write_initial(load_job(folder / "job.toml"), folder / "initial.safetensors").size


def _job(path: Path, size: Size, *, text: str, batch: int, seed: int) -> None:
    steps = size.rounds * size.inner_steps
    path.write_text(
        _JOB.format(
            steps=steps,
            seed=seed,
            dim=size.dim,
            text=text,
            batch=batch,
            warmup=max(1, steps // 50),
            inner_steps=size.inner_steps,
        )
    )


def _draw(curves: dict[str, list[float]], size: Size, sent: dict[str, float], path: Path) -> None:
    """Loss by inner steps, and by bytes that a silo has sent."""
    drawing = Drawing(figsize=(9, 3.6), layout="constrained")
    by_steps, by_bytes = drawing.subplots(1, 2, sharey=True)
    for name, losses in curves.items():
        steps = [size.inner_steps * (number + 1) for number in range(len(losses))]
        by_steps.plot(steps, losses, "o-", markersize=3, label=name)
        by_bytes.plot([sent[name] * step * 8 * 64 / 1e6 for step in steps], losses, "o-", markersize=3, label=name)
    by_steps.set(xlabel="inner steps", ylabel="held-out loss, nats a byte")
    by_bytes.set(xlabel="MB sent by a silo", xscale="log")
    by_steps.legend()
    drawing.savefig(path, metadata={"Date": None})
