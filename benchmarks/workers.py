"""One ingest process against two: rounds of 100 MB with eight clients."""

from __future__ import annotations

import statistics

from benchmarks import baselines
from benchmarks.bulk import MB
from benchmarks.federation import federation
from benchmarks.figures import Figure
from benchmarks.options import Options, progress


def run(options: Options) -> list[Figure]:
    """Median seconds of a round with each number of processes; only stated."""
    model_mb, clients = options.or_else(options.model_mb, 100.0, 0.1), options.or_else(options.clients, 8, 2)
    rounds = options.or_else(options.rounds, 5, 1)
    size, tls, command = int(model_mb * MB) // 4 * 4, options.tls is True, options.command("workers")
    streamed = baselines.streams(size, clients, tls=tls).total_s + baselines.write_and_fsync(size, clients)
    figures = []
    usual = [2] if options.smoke else [1, 2]
    for workers in [options.workers] if options.workers else usual:
        progress(f"{workers} workers")
        with federation(clients=clients, tls=tls, workers=workers, weights="constant") as place:
            seconds = place.run(elements=size // 4, rounds=rounds + 1, clients=clients).seconds
        name = f"round, {model_mb:g} MB, {clients} clients, {workers} ingest process{'es' if workers > 1 else ''}"
        figures.append(Figure.stated(name, statistics.median(seconds), "s", command, beside=streamed))
    return figures
