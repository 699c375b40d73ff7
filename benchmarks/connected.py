"""Many connected participants, some of them drawn in each round: round time, server memory and CPU per idle one.

Each has a real identity and its own check-in stream, over TLS; they share a few processes. Memory is the server's
anonymous memory with all of them connected and idle, minus that with none, divided by their number. A drawn participant
also keeps a connection for its reports, which the second memory figure includes.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.crowds import WARM, crowd
from benchmarks.federation import federation
from benchmarks.figures import Figure
from benchmarks.floor import floor
from benchmarks.options import Options, progress
from benchmarks.plain_peer import idle_bytes
from benchmarks.sampling import memory_of

COHORT = 100
ELEMENTS = 2560
ROUND_S = 1.0
IDLE_BYTES = 100e3
PER_PROCESS = 500
REST_S = 20.0
PLAIN = 300
"""Number of plain connections, to measure the memory of one."""
CROWD = "benchmarks.crowd"

_LIMITS = """
[limits]
enrolments_per_minute = 1000000
"""


def run(options: Options) -> list[Figure]:
    """Figures with 1,000 participants, or as many as ``--clients`` says."""
    count, rounds = options.or_else(options.clients, 1000, 20), options.or_else(options.rounds, 12, 3)
    return _figures(options, count, rounds, options.command("connected"))


def run_many(options: Options) -> list[Figure]:
    """The same with 10,000."""
    count, rounds = (20, 3) if options.smoke else (10_000, 5)
    return _figures(options, count, rounds, options.command("connected-10000"))


def _figures(options: Options, count: int, rounds: int, command: str) -> list[Figure]:
    cohort = min(COHORT, count // 2)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as settings:
        settings.write(_LIMITS)
        settings.flush()
        found = _measure(options, count, cohort, rounds, settings.name)
    plain_bytes = idle_bytes(min(count, PLAIN))
    plain = floor(4 * ELEMENTS, repeats=20 if options.smoke else 200)
    name, usual, plain_s = f"{count} connected", float(np.median(found.seconds)), plain.round_of(cohort)
    drawn = f"{name}, {cohort} drawn, 10 KB"
    each, plain_kb, most_kb = found.idle_bytes / count / 1e3, plain_bytes / 1e3, IDLE_BYTES / 1e3
    later_kb = found.later_bytes / count / 1e3
    return [
        Figure.at_most(f"{drawn}: a round", usual, "s", ROUND_S, command, beside=plain_s),
        Figure.stated(f"{drawn}: slowest round", max(found.seconds), "s", command, beside=plain_s),
        Figure.at_most(f"{name}: server memory each, at rest", each, "KB", most_kb, command, beside=plain_kb),
        Figure.stated(f"{name}: server memory each, after rounds", later_kb, "KB", command, beside=plain_kb),
        Figure.stated("a plain gRPC connection with mutual TLS and a stream", plain_kb, "KB", command),
        Figure.stated(f"{name}, at rest: server CPU", 100 * found.share, "% of a core", command),
    ]


class _Found(NamedTuple):
    """Server memory beyond that of an empty server, seconds of rounds, and the share of a core at rest."""

    idle_bytes: int
    later_bytes: int
    seconds: list[float]
    share: float


def _measure(options: Options, count: int, cohort: int, rounds: int, settings: str) -> _Found:
    with federation(clients=0, options=("--config", settings)) as place:
        assert place.server is not None
        with crowd(place, CROWD, 2 if options.smoke else WARM, name="warm", per_process=WARM):
            pass
        before = memory_of(place.server.pid).anonymous
        began = time.monotonic()
        with crowd(place, CROWD, count, name="crowd", per_process=PER_PROCESS):
            progress(f"{count} connected after {time.monotonic() - began:.0f} s")
            share = share_of_a_core(place.server.pid, 1.0 if options.smoke else REST_S)
            idle = memory_of(place.server.pid).anonymous - before
            seconds = place.run(elements=ELEMENTS, rounds=rounds, clients=cohort).seconds
            later = memory_of(place.server.pid).anonymous - before
    return _Found(idle, later, seconds, share)


def share_of_a_core(pid: int, seconds: float) -> float:
    """CPU seconds that the process takes per second while it is idle."""
    began, before = time.monotonic(), cpu_s(pid)
    time.sleep(seconds)
    return (cpu_s(pid) - before) / (time.monotonic() - began)


def cpu_s(pid: int) -> float:
    """Processor seconds of the process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
