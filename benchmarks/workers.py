"""One ingest process compared with two: rounds of 100 MB with eight clients."""

from __future__ import annotations

import statistics

from benchmarks import baselines
from benchmarks.bulk import MB, WARM_UP
from benchmarks.federation import Course, federation
from benchmarks.figures import Figure
from benchmarks.options import Options, progress


def run(options: Options) -> list[Figure]:
    """Median seconds of a round with each number of processes; without a target."""
    model_mb, clients = options.or_else(options.model_mb, 100.0, 0.1), options.or_else(options.clients, 8, 2)
    rounds, warm_up = options.or_else(options.rounds, 8, 1), 1 if options.smoke else WARM_UP
    size, tls, command = int(model_mb * MB) // 4 * 4, options.tls is True, options.command("workers")
    usual = [2] if options.smoke else [1, 2]
    courses: dict[int, Course] = {}
    plain = [baselines.plain(size, clients, tls=tls)]
    for workers in [options.workers] if options.workers else usual:
        progress(f"{workers} workers")
        kept = ["--keep-models", "1"]
        with federation(clients=clients, tls=tls, workers=workers, weights="constant", options=kept) as place:
            courses[workers] = place.run(elements=size // 4, rounds=warm_up + rounds, clients=clients, warm_up=warm_up)
        plain.append(baselines.plain(size, clients, tls=tls))
    beside, what = baselines.Plain.mean(plain), f"{model_mb:g} MB, {clients} clients"
    return [
        figure for workers, course in courses.items() for figure in _figures(course, workers, what, command, beside)
    ]


def _figures(course: Course, workers: int, what: str, command: str, plain: baselines.Plain) -> list[Figure]:
    processes = f"{workers} ingest process{'es' if workers > 1 else ''}"
    seconds = statistics.median(course.seconds)
    return [
        Figure.stated(f"round, {what}, {processes}", seconds, "s", command, beside=plain.round_s),
        Figure.stated("  processor time, beside the streams'", course.cpu_s, "s", command, beside=plain.streams.cpu_s),
    ]
