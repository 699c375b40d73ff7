"""The loss of two silos that exchange every 500 steps, compared with synchronous training, by update encoding.

A byte-level language model on the standard library's text is first trained synchronously. From there, either each of
two silos trains on half of the text, or one job of two ranks trains on all of it and averages gradients in every step.
Steps, sequences, tokens and learning rates are the same in total. Models are evaluated on held-out text. The curves are
drawn to benchmarks/results/silo-diloco.svg.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure as Drawing

from atoll.wire.encoding import Encoding, payload_bytes
from benchmarks.figures import RESULTS, Figure
from benchmarks.silo.diloco_runs import BATCH, SEQUENCE, SILOS, Bench, Case, Size, Trained

INNER_STEPS = 500
FEWER_BYTES = 1000.0
TOKENS = BATCH * SEQUENCE
"""Sequences of a step in each silo."""
IN_STEP = Case("in step")
CASES = (IN_STEP, Case("float32", "float32"), Case("int8", "int8"), Case("int4", "int4"))
PAIRS = (("float32", "in step", 1.0), ("int4", "in step", 1.0), ("int8", "float32", 0.5), ("int4", "float32", 1.0))
"""A case, its baseline, and by how many per cent its loss may exceed the baseline's."""
_WIRE = {"float32": Encoding.FLOAT32, "int8": Encoding.INT8_BLOCK, "int4": Encoding.INT4_BLOCK}
_DILOCO = 'name = "fedavgm"\nmomentum = 0.6\nnesterov = true\nlr = 0.7'
"""Settings of Douillard et al. 2023, except their momentum of 0.9, which averages over all ten rounds of this run."""
_FULL = Size(4000, 10, INNER_STEPS, dim=64, rows=1024, end_rows=9400, warm_lr=3e-3, lr=1e-3, outer=_DILOCO)
_SMALL = Size(4, 2, 3, dim=32, rows=64, end_rows=64, warm_lr=3e-3, lr=1e-3, outer=_DILOCO)
_COLOURS = {case.name: f"C{number}" for number, case in enumerate(CASES)}


@dataclass(frozen=True)
class Seed:
    """The results of one seed.

    Attributes:
        elements: of the model.
        start: held-out loss of the model from which all cases continue.
        ends: result of each case, by name.
    """

    elements: int
    start: float
    ends: Mapping[str, Trained]


def run(smoke: bool, seeds: int = 1) -> list[Figure]:
    """All cases for each seed; half an hour a seed on two cores shared with other work."""
    command = "python -m benchmarks.silo diloco" + (f" --seeds {seeds}" if seeds > 1 else "")
    size = _SMALL if smoke else _FULL
    cases = [case for case in CASES if not smoke or case.name == "int4"]
    found = [_seed(size, seed, cases) for seed in range(seeds)]
    sent = bytes_sent(found[0].elements, size.inner_steps)
    if smoke:
        return [
            Figure.stated("held-out loss, int4", found[0].ends["int4"].loss, "nats", command),
            *_bytes(sent, size, command, smoke=True),
        ]
    _draw(found, size, sent, RESULTS / "silo-diloco.svg")
    return [*losses(found, size, command), *_bytes(sent, size, command, smoke=False)]


def _seed(size: Size, seed: int, cases: Sequence[Case]) -> Seed:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), size, seed)
        return Seed(bench.elements, bench.start.loss, {case.name: bench.train(case) for case in cases})


def losses(seeds: Sequence[Seed], size: Size, command: str) -> list[Figure]:
    """Final losses, and the excess of one case's loss over another's: the mean over seeds, and the worst seed."""
    of_seeds = f", mean of {len(seeds)} seeds" if len(seeds) > 1 else ""
    mean = {case.name: fmean(one.ends[case.name].loss for one in seeds) for case in CASES}
    start = fmean(one.start for one in seeds)
    found = [
        Figure.stated(f"held-out loss after {size.warm_steps} steps in step{of_seeds}", start, "nats", command),
        Figure.stated(f"held-out loss {size.steps} steps later, in step{of_seeds}", mean["in step"], "nats", command),
    ]
    found += [Figure.stated(f"  {case.name}", mean[case.name], "nats", command) for case in CASES if not case.in_step]
    for name, other, bound in PAIRS:
        above = [100 * (one.ends[name].loss / one.ends[other].loss - 1) for one in seeds]
        found.append(Figure.at_most(f"{name} above {other}{of_seeds}", fmean(above), "%", bound, command))
        if len(seeds) > 1:
            found.append(Figure.stated("  the best seed", min(above), "%", command))
            found.append(Figure.at_most("  the worst seed", max(above), "%", bound, command))
    return found


def bytes_sent(elements: int, inner_steps: int) -> dict[str, float]:
    """Bytes that a silo sends for each token, by case: an update for each round, or its part of a ring in every step.

    A ring all-reduce of N float32 elements over P sends 2 (P - 1) / P x 4 N bytes (Patarasuk and Yuan 2009).
    """
    updates = {
        case.name: payload_bytes(_WIRE[case.encoding], elements) / (TOKENS * inner_steps)
        for case in CASES
        if not case.in_step
    }
    return {IN_STEP.name: 2 * (SILOS - 1) / SILOS * 4 * elements / TOKENS, **updates}


def _bytes(sent: Mapping[str, float], size: Size, command: str, *, smoke: bool) -> list[Figure]:
    fewer = sent["in step"] / sent["int4"]
    what = f"bytes that a silo sends for a token, in step / int4, H = {size.inner_steps}"
    received = sent["float32"]  # the model is downloaded unencoded
    both = 2 * sent["in step"] / (sent["int4"] + received)
    return [
        Figure.stated(what, fewer, "times", command)
        if smoke
        else Figure.at_least(what, fewer, "times", FEWER_BYTES, command),
        Figure.stated("  sent and received, models in float32", both, "times", command),
    ]


def _draw(seeds: Sequence[Seed], size: Size, sent: Mapping[str, float], path: Path) -> None:
    """Loss by steps since the start, and by bytes sent by a silo since then; a line for each seed."""
    drawing = Drawing(figsize=(9, 3.6), layout="constrained")
    by_steps, by_bytes = drawing.subplots(1, 2, sharey=True)
    for number, one in enumerate(seeds):
        for name, trained in one.ends.items():
            steps = [size.inner_steps * done for done in range(len(trained.curve))]
            megabytes = [sent[name] * step * TOKENS / 1e6 for step in steps]
            look = {"color": _COLOURS[name], "linewidth": 1, "markersize": 2.5, "marker": "o"}
            by_steps.plot(steps, trained.curve, label=None if number else name, **look)
            by_bytes.plot(megabytes[1:], trained.curve[1:], **look)
    by_steps.set(xlabel=f"steps after {size.warm_steps} in step", ylabel="held-out loss, nats a byte")
    by_bytes.set(xlabel="MB sent by a silo", xscale="log")
    by_steps.legend()
    drawing.savefig(path, metadata={"Date": None})
