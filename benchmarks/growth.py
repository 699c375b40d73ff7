"""Scaling of rounds: with the number of clients at 10 MB, and with the size of the model at two clients.

Time should grow linearly, the server's memory should not grow with the clients, and disk use should stay within the
spool and the kept models.
"""

from __future__ import annotations

import statistics

from benchmarks import baselines
from benchmarks.bulk import MB, WARM_UP
from benchmarks.federation import federation
from benchmarks.figures import Figure
from benchmarks.options import Options, progress

CLIENTS = (1, 2, 4, 8, 16, 32, 64)
CLIENTS_MB = 10.0
SIZES_MB = (1.0, 4.0, 10.0, 40.0, 100.0, 400.0, 1000.0, 4000.0)
SIZES_CLIENTS = 2
LARGE_MB = 400.0
"""Beyond this size three rounds are measured instead of eight."""


def run(options: Options) -> list[Figure]:
    """Both tables; with --clients or --model-mb only the named row."""
    if options.clients is not None or options.model_mb is not None or options.smoke:
        return _row(options, options.or_else(options.model_mb, CLIENTS_MB, 0.1), options.clients or SIZES_CLIENTS)
    rows = [(CLIENTS_MB, clients) for clients in CLIENTS] + [(size, SIZES_CLIENTS) for size in SIZES_MB]
    return [figure for model_mb, clients in rows for figure in _row(options, model_mb, clients)]


def _row(options: Options, model_mb: float, clients: int) -> list[Figure]:
    large, tls = model_mb > LARGE_MB, options.tls is True
    rounds, warm_up = options.or_else(options.rounds, 3 if large else 8, 1), 1 if options.smoke else WARM_UP
    size, command, repeats = int(model_mb * MB) // 4 * 4, options.command("growth"), 1 if large else 3
    before = baselines.plain(size, clients, tls=tls, repeats=repeats)
    with federation(clients=clients, tls=tls, weights="constant", options=["--keep-models", "1"]) as at:
        course = at.run(elements=size // 4, rounds=warm_up + rounds, clients=clients, watch_disk=True, warm_up=warm_up)
    plain = baselines.Plain.mean([before, baselines.plain(size, clients, tls=tls, repeats=repeats)])
    what = f"{model_mb:g} MB, {clients} clients"
    progress(f"{what}: {statistics.median(course.seconds):.3f} s, plainly {plain.round_s:.3f} s")
    return [
        Figure.stated(f"round, {what}", statistics.median(course.seconds), "s", command, beside=plain.round_s),
        Figure.stated(f"  server anonymous memory, {what}", course.server.anonymous / MB, "MB", command),
        Figure.stated(f"  server disk, {what}", course.disk_bytes / MB, "MB", command),
    ]
