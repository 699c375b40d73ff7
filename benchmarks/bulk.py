"""Rounds of a large model, compared with plain gRPC streams of the same bytes and plain writes of the uploads.

A round is timed from release to release, with every update fsynced before it is acknowledged and the new model before
it is visible. The first round, which fills caches and touches memory, is stated separately. A few more pass before
files begin to be overwritten (``atoll.server.disk.recycling``): as many as the number of kept models, one here. Each
baseline is the mean of a measurement before and one after.
"""

from __future__ import annotations

import statistics

from benchmarks import baselines
from benchmarks.federation import Course, federation
from benchmarks.figures import Figure
from benchmarks.options import Options, progress

MB = 1_000_000
TARGET = 1.3
WARM_UP = 4
SERVER_MODELS, SERVER_MB = 2.5, 300
CLIENT_MODELS, CLIENT_MB = 2.2, 150


def run(options: Options) -> list[Figure]:
    """1 GB and two clients by default, without TLS and with it."""
    usual = [True] if options.smoke else [False, True]
    kinds = usual if options.tls is None else [options.tls]
    return [figure for tls in kinds for figure in _measure(options, tls=tls)]


def _measure(options: Options, *, tls: bool) -> list[Figure]:
    model_mb, clients = options.or_else(options.model_mb, 1000.0, 1.0), options.or_else(options.clients, 2, 2)
    rounds, workers = options.or_else(options.rounds, 6, 2), options.workers or 1
    size = int(model_mb * MB) // 4 * 4
    with_tls = "TLS" if tls else "plaintext"
    what = f"{model_mb:g} MB, {clients} clients{f', {workers} workers' if workers > 1 else ''}, {with_tls}"
    command = options.command("bulk")
    repeats = 1 if options.smoke else 3
    before = baselines.plain(size, clients, tls=tls, repeats=repeats)
    progress(f"{what}: plainly {before.round_s:.2f} s; now {rounds} rounds")
    with federation(clients=clients, tls=tls, workers=workers, options=["--keep-models", "1"]) as place:
        course = place.run(elements=size // 4, rounds=WARM_UP + rounds, clients=clients, warm_up=WARM_UP)
    every = [course.first_s, *course.warming, *course.seconds]
    progress(f"{what}: {', '.join(f'{one:.2f}' for one in every)} s")
    after = baselines.plain(size, clients, tls=tls, repeats=repeats)
    progress(f"{what}: plainly {after.round_s:.2f} s")
    plain = baselines.Plain.mean([before, after])
    return [
        *_seconds(course, plain, f"round, {what}", command, smoke=options.smoke),
        *memory_figures(course, model_mb, what, command),
    ]


def _seconds(course: Course, plain: baselines.Plain, name: str, command: str, *, smoke: bool) -> list[Figure]:
    median, streams = statistics.median(course.seconds), plain.streams
    beside_all = Figure.within(name, median, "s", command, limit=plain.round_s, target=TARGET)
    if smoke:
        beside_all = Figure.stated(name, median, "s", command, beside=plain.round_s)
    return [
        beside_all,
        Figure.stated("  with the plain uploads written over files", median, "s", command, beside=plain.over_s),
        Figure.stated("  beside the gRPC streams alone (stretch: 1.5)", median, "s", command, beside=streams.total_s),
        Figure.stated("  its slowest round", max(course.seconds), "s", command, beside=plain.round_s),
        Figure.stated("  its first round", course.first_s, "s", command, beside=plain.round_s),
        Figure.stated("  processor time, beside the streams'", course.cpu_s, "s", command, beside=streams.cpu_s),
    ]


def memory_figures(course: Course, model_mb: float, what: str, command: str) -> list[Figure]:
    """Peaks of the server's and of a client's memory."""
    server, client = course.server, course.client
    return [
        Figure.at_most(
            f"  server anonymous memory, {what}",
            server.anonymous / MB,
            "MB",
            SERVER_MODELS * model_mb + SERVER_MB,
            command,
        ),
        Figure.at_most(
            f"  client anonymous memory, {what}",
            client.anonymous / MB,
            "MB",
            CLIENT_MODELS * model_mb + CLIENT_MB,
            command,
        ),
        Figure.stated("  server mapped files", server.mapped / MB, "MB", command),
        Figure.stated("  client mapped files", client.mapped / MB, "MB", command),
    ]
