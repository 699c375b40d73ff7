"""The soak as a benchmark case: the growth of each series, and the allowed growth."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from benchmarks.federation import Federation, Nursery
from benchmarks.figures import RESULTS, Figure, circumstances
from benchmarks.options import Options, progress
from benchmarks.soak.churn import Counts, Crowd, Runs
from benchmarks.soak.flatness import Tolerance, Verdict, judge
from benchmarks.soak.health import Health, sample

SAMPLES = RESULTS.parent / "samples" / "soak.json"
MINUTES = 30.0
_SMOKE_MINUTES = 0.5
_SAMPLE_S = 2.0
_LEAST_SAMPLES, _LEAST_STIRS = 16, 4
"""The soak lasts longer on a very busy machine."""
_STIR_S = 4.0
_SEED = 1
_PAUSE_S = 0.25
_PROGRESS_S = 60.0

MIB = 1 << 20
TOLERANCES = {
    "memory": (Tolerance(0.02, 2 * MIB, floors=True), "MiB", MIB),  # large models take 30 MiB during a sum
    "descriptors": (Tolerance(0.0, 4.0), "", 1),
    "threads": (Tolerance(0.0, 2.0), "", 1),
    "files": (Tolerance(0.0, 2 * MIB), "MiB", MIB),  # less than half of one large model
    "entries": (Tolerance(0.0, 4.0), "", 1),  # a small model is two files
    "free": (Tolerance(0.0, 5 * MIB), "MiB", MIB),
    "database": (Tolerance(0.05, 0.5 * MIB), "MiB", MIB),
    "log": (Tolerance(0.05, 5.0 * MIB), "MiB", MIB),  # grows to SQLite's checkpoint, every 4 MiB, and stays there
}
"""Series → allowed growth over the judged time, unit in the table, and its divisor."""
SETTINGS = """
keep_models = 2
certificate_lifetime_s = 300.0

[storage]
keep_events = 2000
keep_ended_days = 0.001
sweep_s = 20.0
"""


@dataclass(frozen=True)
class Soaked:
    """The results of a finished soak."""

    samples: tuple[Health, ...]
    counts: Counts

    def verdict(self, series: str) -> Verdict:
        """The criterion for one series."""
        values = [getattr(one, series) for one in self.samples]
        return judge([one.at_s for one in self.samples], values, TOLERANCES[series][0])


def run(options: Options) -> list[Figure]:
    """Soak a server; yield each series with its allowed growth."""
    minutes = options.or_else(options.minutes, MINUTES, _SMOKE_MINUTES)
    soaked = soak(minutes * 60.0)
    if minutes >= MINUTES:
        SAMPLES.parent.mkdir(exist_ok=True)
        SAMPLES.write_text(json.dumps({**circumstances(), "samples": [asdict(one) for one in soaked.samples]}) + "\n")
    return figures(soaked, f"python -m benchmarks soak --minutes {minutes:g}")


def figures(soaked: Soaked, command: str) -> list[Figure]:
    """The figures."""
    last = soaked.samples[-1]
    found = [
        Figure.stated("time", last.at_s / 60, "min", command),
        Figure.stated("rounds released", float(last.rounds), "", command),
        *(Figure.stated(name, float(count), "", command) for name, count in _named(soaked.counts)),
    ]
    for name, (_, unit, per) in TOLERANCES.items():
        verdict = soaked.verdict(name)
        found += [
            Figure.stated(f"server: {name}, median", verdict.median / per, unit, command),
            Figure.at_most(f"  {name}, fitted growth", verdict.growth / per, unit, verdict.allowed / per, command),
        ]
    return found


def soak(
    seconds: float,
    *,
    server: Sequence[str] = (),
    seed: int = _SEED,
    sample_s: float = _SAMPLE_S,
    pause_s: float = _PAUSE_S,
) -> Soaked:
    """Run rounds and churn for this time.

    Args:
        seconds: duration.
        server: a command that replaces ``atoll``, for the server only.
        seed: of the churn.
        sample_s: seconds between two samples.
        pause_s: duration of one "training".
    """
    with tempfile.TemporaryDirectory(prefix="atoll-soak-") as folder, Nursery(Path(folder)) as nursery:
        place = Federation(Path(folder), nursery, tls=True)
        (place.place / "server.toml").write_text(SETTINGS)
        place.start_server("--config", str(place.place / "server.toml"), program=server)
        rng = Random(seed)
        crowd = Crowd(place, rng, pause_s)
        crowd.gather()
        try:
            runs = Runs(place, rng, crowd.counts)
            runs.prepare()
            return Soaked(tuple(_sampled(place, crowd, runs, seconds, sample_s)), crowd.counts)
        finally:
            crowd.dismiss()


def _sampled(place: Federation, crowd: Crowd, runs: Runs, seconds: float, sample_s: float) -> list[Health]:
    """Sample the server at regular intervals; another thread causes the churn, whose commands may be slow."""
    server = place.server
    assert server is not None
    began, over = time.monotonic(), threading.Event()
    found: list[Health] = []
    tell_s = 0.0
    with ThreadPoolExecutor(max_workers=1) as pool:
        stirred = pool.submit(_stir, crowd, runs, began + seconds, over)
        try:
            while not stirred.done() or len(found) < _LEAST_SAMPLES:
                if server.poll() is not None:
                    raise RuntimeError(f"the server ended:\n{place.server_log()[-4000:]}")
                now_s = time.monotonic() - began
                found.append(sample(server.pid, place.data, now_s, runs.released, len(crowd.running)))
                if now_s >= tell_s:
                    tell_s = now_s + _PROGRESS_S
                    progress(_line(found[-1]))
                over.wait(sample_s)
        finally:
            over.set()
    stirred.result()
    return found


def _stir(crowd: Crowd, runs: Runs, until_s: float, over: threading.Event) -> None:
    """Every few seconds, manage the runs and start or stop a participant, until ``until_s`` or the end."""
    began = time.monotonic()
    stirs = 0
    while not over.wait(max(0.0, began + stirs * _STIR_S - time.monotonic())):
        if time.monotonic() >= until_s and stirs >= _LEAST_STIRS:
            return
        runs.look()
        crowd.stir(time.monotonic() - began)
        stirs += 1


def _line(one: Health) -> str:
    return (
        f"{one.at_s / 60:5.1f} min, {one.rounds} rounds, {one.connected} participants: {one.memory / MIB:.1f} MiB, "
        f"{one.descriptors:.0f} descriptors, {one.threads:.0f} threads, files {one.files / MIB:.2f} MiB, "
        f"{one.entries:.0f} of them, {one.free / MIB:.2f} MiB free, database {one.database / MIB:.2f} MiB"
    )


def _named(counts: Counts) -> list[tuple[str, int]]:
    return [(f"  {name}", count) for name, count in asdict(counts).items()]
