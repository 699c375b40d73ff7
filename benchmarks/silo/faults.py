"""A killed rank: the time to recovery and the equality of bits; and the cost of a checkpoint."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import join_world
from benchmarks.figures import Figure
from tests.datacenter.checkpoint.going_on import Run, sections_of
from tests.datacenter.elastic.launched import Hold, launched, tensors_of, write_job
from tests.datacenter.ranks import run_ranks

COMMAND = "python -m benchmarks.silo faults"
BACK_WITHIN_S = 30.0
_STEPS = 8
_LARGE = {"vocab": 256, "layers": 8, "dim": 512, "heads": 8, "kv_heads": 8, "ffn_dim": 1408}
_SMALL = {"vocab": 256, "layers": 2, "dim": 64, "heads": 2, "kv_heads": 2, "ffn_dim": 192}
_TIMEOUT_S = 300.0


def run(smoke: bool) -> list[Figure]:
    """Both benchmarks: recovery after a kill, and the cost of a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        return [
            *killed(Path(folder), ranks=2, command=COMMAND),
            *_costs(Path(folder) / "costs", _SMALL if smoke else _LARGE),
        ]


def killed(folder: Path, *, ranks: int, command: str) -> list[Figure]:
    """Kill the last rank; return the time until the first step afterwards, including new processes."""
    nproc = ("--nproc", str(ranks))
    with launched(write_job(folder / "undisturbed"), *nproc) as job:
        _expect_end(job.wait(), job.said)
    written = write_job(folder / "killed")
    hold = Hold(folder / "fifo", rank=ranks - 1, step=6)
    with launched(written, *nproc, HOLD=hold.variable) as job:
        pid = hold.wait()
        killed_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        _expect_end(job.wait(), job.said)
    again = next(number for number, line in enumerate(job.lines) if "all ranks restart from" in line)
    seen = zip(job.lines[again:], job.times[again:], strict=True)
    back_s = next(at for line, at in seen if line.startswith("step "))
    wanted, found = (tensors_of(folder / name, _STEPS) for name in ("undisturbed", "killed"))
    different = sum(found[name] != digest for name, digest in wanted.items())
    return [
        Figure.at_most("killed rank: until the next step is made", back_s - killed_s, "s", BACK_WITHIN_S, command),
        Figure.at_most("  files of the last checkpoint that differ", different, "", 0, command),
    ]


def _expect_end(code: int, said: str) -> None:
    if code != 0:
        raise RuntimeError(f"the job ended with {code}:\n{said}")


def _costs(folder: Path, model: dict[str, Any]) -> list[Figure]:
    figures = []
    for asynchronous in (True, False):
        found = run_ranks(_cost, 2, str(folder / str(asynchronous)), model, asynchronous, timeout_s=_TIMEOUT_S)[0]
        how = "beside training" if asynchronous else "waited for"
        name = f"checkpoint of {found['bytes'] / 1e6:.0f} MB, 2 ranks, {how}"
        figures.append(Figure.stated(f"{name}: training stands still", found["stall_s"] * 1000, "ms", COMMAND))
        figures.append(Figure.stated("  until it is durable", found["write_s"] * 1000, "ms", COMMAND))
    return figures


def _cost(folder: str, model: dict[str, Any], asynchronous: bool) -> dict[str, float]:  # the argument of run_ranks
    """The third of three measurements: the first allocates memory for the copy."""
    sections = sections_of(
        1, model=model, data_parallel={"method": "zero3"}, checkpoint={"asynchronous": asynchronous, "keep": 1}
    )
    with join_world(_TIMEOUT_S) as world:
        run = Run.start(SiloJob.model_validate(sections), folder, world)
        run.until(3)
        costs = run.checkpoints.costs
        run.checkpoints.close()
        kept = Path(folder) / "kept"
        size = sum(path.stat().st_size for path in kept.rglob("*.safetensors"))
        if costs is None:
            raise RuntimeError("no checkpoint was made")
        return {"stall_s": costs.stall_s, "write_s": costs.write_s, "bytes": float(size)}
