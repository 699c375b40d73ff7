"""The planner: its time for 70B on 1,024 ranks, and the error of its bytes and memory against counted values."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import starting
from benchmarks.figures import Figure

COMMAND = "python -m benchmarks.silo planner"
SECONDS, PEAK_MIB = 15.0, 1024.0
BYTES_WITHIN, MEMORY_WITHIN = 2.0, 10.0
_EXAMPLES = Path(__file__).parents[2] / "examples" / "silo"

_SMALL = """
[job]
name = "small"
steps = 1
[model]
dim = 256
heads = 8
vocab = 2048
[batch]
sequence = 512
"""


def run(smoke: bool) -> list[Figure]:
    """Both figures; a smoke run plans for 8 ranks and counts a small model."""
    job, ranks = ("llama-8b", 8) if smoke else ("llama-70b", 1024)
    return [*_search(job, ranks), *_verified(smoke)]


def _search(job: str, ranks: int) -> list[Figure]:
    usage = _finished([str(_EXAMPLES / f"{job}.toml"), "--gpus", str(ranks)])
    name = f"planner: {job} on {ranks} ranks"
    return [
        Figure.at_most(f"{name}, processor time", usage.processor_s, "s", SECONDS, COMMAND),
        Figure.at_most("  peak memory", usage.peak_kib / 1024, "MiB", PEAK_MIB, COMMAND),
    ]


def _verified(smoke: bool) -> list[Figure]:
    """The largest error over kinds of collectives, and the error of memory."""
    with tempfile.TemporaryDirectory() as folder:
        source = _EXAMPLES / "llama-8b.toml"
        if smoke:
            source = Path(folder) / "job.toml"
            source.write_text(_SMALL, encoding="utf-8")
        said = _finished([str(source), "--gpus", "8", "--as-written", "--verify"]).output
        rows: list[dict[str, Any]] = json.loads(said)["verified"]
    off = {row["what"]: 100 * abs(row["predicted"] / row["counted"] - 1) for row in rows}
    memory = off.pop("memory")
    name = "planner against the fake backend, 8 ranks"
    return [
        Figure.at_most(f"{name}: collective bytes off", max(off.values()), "%", BYTES_WITHIN, COMMAND),
        Figure.at_most("  memory off", memory, "%", MEMORY_WITHIN, COMMAND),
    ]


def _finished(options: list[str]) -> starting.Used:
    """The output and the resources of a run of ``atoll silo plan``.

    Raises:
        RuntimeError: if it fails.
    """
    command = [sys.executable, "-m", "benchmarks.silo.planning", "plan", *options, "--json"]
    return starting.used(command, os.environ)
