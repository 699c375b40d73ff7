"""Job files of the demonstration: three for silos and clients, one for the server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SEQUENCE = 128
SILO_BATCH, EDGE_BATCH = 8, 4
_MICRO = (SILO_BATCH // 2, SILO_BATCH, EDGE_BATCH, EDGE_BATCH)
RANKS = 2
"""Ranks of each silo."""
SHARES = (3, 3, 1, 1)
"""Shares of the text: two silos, two edge clients."""
SERVER_JOB = "federation.toml"
_MESH = ("# two ranks, parameters sharded over both (FSDP2)", "tp = 2 # two ranks, every matrix cut in two")

_TRAINING = """\
[job]
name = "{name}"
steps = {steps}
seed = {seed}

[model] # the same in all job files: the federation's model
vocab = 256
layers = 2
dim = 96
heads = 4

[data]
source = "text"
path = "text-{number}"

[batch]
sequence = {sequence}
global_batch = {batch}
micro_batch = {micro_batch}

[optimiser]
lr = 3e-3

[schedule]
warmup_steps = 10
floor = 0.2

[mesh]
{mesh}

[federation]
inner_steps = {inner_steps}

[metrics]
every_steps = {inner_steps}
"""
_FEDERATION = """\
[job]
name = "text"
rounds = {rounds}

[model]
initial = "init.safetensors"

[cohort]
size = {participants}
seed = {seed}

[straggler]
report_window_s = 120

[aggregation]
max_weight = {max_weight} # tokens of a silo's round
encoding = "{encoding}" # of updates

[optimiser] # DiLoCo's outer optimiser
name = "fedavgm"
momentum = 0.9
nesterov = true
lr = 0.7

[training]
inner_steps = {inner_steps}

[evaluation]
server = "text"
before_training = false
final = false
"""


@dataclass(frozen=True)
class Plan:
    """Settings of the demonstration.

    Attributes:
        rounds: number of outer steps.
        inner_steps: steps of each participant in a round.
        seed: seed of weights, data order and draws.
        encoding: encoding of updates.
        port: main port of the server; 0: free ports.
    """

    rounds: int
    inner_steps: int
    seed: int
    encoding: str
    port: int = 0


def job_name(number: int) -> str:
    """Return the file name of a participant's job; silos come first."""
    return f"silo-{number}.toml" if number < len(_MESH) else f"edge-{number}.toml"


def write_jobs(folder: Path, plan: Plan) -> None:
    """Write all job files."""
    for number in range(len(SHARES)):
        is_silo = number < len(_MESH)
        text = _TRAINING.format(
            name=job_name(number).removesuffix(".toml"),
            steps=plan.rounds * plan.inner_steps,
            inner_steps=plan.inner_steps,
            seed=plan.seed,
            number=number,
            sequence=SEQUENCE,
            batch=SILO_BATCH if is_silo else EDGE_BATCH,
            micro_batch=_MICRO[number],
            mesh=_MESH[number] if is_silo else "",
        )
        (folder / job_name(number)).write_text(text, encoding="utf-8")
    text = _FEDERATION.format(
        rounds=plan.rounds,
        inner_steps=plan.inner_steps,
        seed=plan.seed,
        encoding=plan.encoding,
        participants=len(SHARES),
        max_weight=plan.inner_steps * SILO_BATCH * SEQUENCE,
    )
    (folder / SERVER_JOB).write_text(text, encoding="utf-8")
