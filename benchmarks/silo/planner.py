"""The planner: its time for 70B on 1,024 ranks, and the error of its bytes and memory against counted values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure

COMMAND = "python -m benchmarks.silo planner"
SECONDS, PEAK_MIB = 15.0, 1024.0
BYTES_WITHIN, MEMORY_WITHIN = 2.0, 10.0
_EXAMPLES = Path(__file__).parents[2] / "examples" / "silo"
_RUN = "import sys; from atoll.datacenter.cli import silo; silo(sys.argv[1:])"

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
        Figure.at_most(f"{name}, processor time", usage.ru_utime + usage.ru_stime, "s", SECONDS, COMMAND),
        Figure.at_most("  peak memory", usage.ru_maxrss / 1024, "MiB", PEAK_MIB, COMMAND),
    ]


def _verified(smoke: bool) -> list[Figure]:
    """The largest error over kinds of collectives, and the error of memory."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        source = _EXAMPLES / "llama-8b.toml"
        if smoke:
            source = Path(folder) / "job.toml"
            source.write_text(_SMALL, encoding="utf-8")
        with answer.open("w", encoding="utf-8") as said:
            _finished([str(source), "--gpus", "8", "--as-written", "--verify"], said.fileno())
        rows: list[dict[str, Any]] = json.loads(answer.read_text(encoding="utf-8"))["verified"]
    off = {row["what"]: 100 * abs(row["predicted"] / row["counted"] - 1) for row in rows}
    memory = off.pop("memory")
    name = "planner against the fake backend, 8 ranks"
    return [
        Figure.at_most(f"{name}: collective bytes off", max(off.values()), "%", BYTES_WITHIN, COMMAND),
        Figure.at_most("  memory off", memory, "%", MEMORY_WITHIN, COMMAND),
    ]


def _finished(options: list[str], output: int = subprocess.DEVNULL) -> Any:
    """The resources used by a run of ``atoll silo plan``.

    Raises:
        RuntimeError: if it fails.
    """
    process = subprocess.Popen([sys.executable, "-c", _RUN, "plan", *options, "--json"], stdout=output)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"atoll silo plan {' '.join(options)} ended with {process.returncode}")
    return usage
