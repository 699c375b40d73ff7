"""Many connected participants, of whom each round draws some: seconds a round, server memory and CPU per idle one.

Each is a real identity with a check-in stream of its own, over TLS; they share a few processes. Memory is the server's
anonymous memory with all of them connected and at rest, less that with none, over their number. Whoever has been drawn
also has a connection for its reports from then on: that is in the second memory figure.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.federation import Federation, federation
from benchmarks.figures import Figure
from benchmarks.idle_peer import idle_bytes
from benchmarks.options import Options, progress
from benchmarks.sampling import memory_of

COHORT = 100
ELEMENTS = 2560
ROUND_S = 1.0
IDLE_BYTES = 100e3
PER_PROCESS = 500
REST_S = 20.0
PLAIN = 300
"""Plain connections, for what one of them takes."""
_CROWD = [sys.executable, "-m", "benchmarks.crowd"]
_TOKENS_PER_CALL = 1000

_LIMITS = """
[limits]
enrolments_per_minute = 1000000
"""


def run(options: Options) -> list[Figure]:
    """Figures with 1,000 participants, or as many as ``--clients`` says."""
    crowd = options.or_else(options.clients, 1000, 20)
    rounds = options.or_else(options.rounds, 12, 3)
    cohort = min(COHORT, crowd // 2)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as settings:
        settings.write(_LIMITS)
        settings.flush()
        return _measure(options, crowd, cohort, rounds, settings.name)


def _measure(options: Options, crowd: int, cohort: int, rounds: int, settings: str) -> list[Figure]:
    with federation(clients=0, options=("--config", settings)) as place:
        assert place.server is not None
        before = memory_of(place.server.pid).anonymous
        began = time.monotonic()
        _gather(place, crowd)
        progress(f"{crowd} connected after {time.monotonic() - began:.0f} s")
        share = _share_of_a_core(place.server.pid, 1.0 if options.smoke else REST_S)
        idle = memory_of(place.server.pid).anonymous - before
        seconds = place.run(elements=ELEMENTS, rounds=rounds, clients=cohort).seconds
        later = memory_of(place.server.pid).anonymous - before
    plain = idle_bytes(min(crowd, PLAIN))
    command, name = options.command("connected"), f"{crowd} connected"
    usual, slowest = float(np.median(seconds)), max(seconds)
    return [
        Figure.at_most(f"{name}, {cohort} drawn, 10 KB: a round", usual, "s", ROUND_S, command),
        Figure.stated(f"{name}, {cohort} drawn, 10 KB: slowest round", slowest, "s", command),
        Figure.at_most(f"{name}: server memory each, at rest", idle / crowd / 1e3, "KB", IDLE_BYTES / 1e3, command),
        Figure.stated("a plain gRPC connection with mutual TLS and a stream", plain / 1e3, "KB", command),
        Figure.stated(f"{name}: server memory each, after rounds", later / crowd / 1e3, "KB", command),
        Figure.stated(f"{name}, at rest: server CPU", 100 * share, "% of a core", command),
    ]


def _gather(place: Federation, crowd: int) -> None:
    """Start processes of participants, one after the other, until all are connected."""
    tokens: list[str] = []
    while len(tokens) < crowd:
        count = min(_TOKENS_PER_CALL, crowd - len(tokens))
        tokens += place.call("token", "new", "--count", str(count))["tokens"]
    for number, start in enumerate(range(0, crowd, PER_PROCESS)):
        _start(place, f"crowd-{number}", tokens[start : start + PER_PROCESS])


def _start(place: Federation, name: str, tokens: list[str]) -> None:
    folder = place.place / name
    folder.mkdir()
    listed = folder / "tokens"
    listed.write_text("\n".join(tokens))
    reading, writing = os.pipe()
    process = place.start_process([*_CROWD, str(folder), str(listed), str(writing)], name, keep_open=(writing,))
    os.close(writing)
    with os.fdopen(reading) as told:
        if told.readline().strip() != "ready":
            raise RuntimeError(f"{name} ended with status {process.wait()}")


def _share_of_a_core(pid: int, seconds: float) -> float:
    """CPU seconds that the process takes in a second while nothing is asked of it."""
    began, before = time.monotonic(), _cpu_s(pid)
    time.sleep(seconds)
    return (_cpu_s(pid) - before) / (time.monotonic() - began)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
