"""Rounds of a large model beside plain gRPC streams of the same bytes, and plain writing of the uploads.

A round is timed from release to release, with every update fsynced before it is acknowledged and the new model before
it is visible. The first round, which makes caches and touches memory, is stated for itself, and a few more pass before
files begin to be written over (``atoll.server.recycling``): as many as there are models kept, one here. The baselines
are the mean of what is measured before and after.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

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
    """1 GB and two clients unless told otherwise, without TLS and with it."""
    usual = [True] if options.smoke else [False, True]
    kinds = usual if options.tls is None else [options.tls]
    return [figure for tls in kinds for figure in _measure(options, tls=tls)]


def _measure(options: Options, *, tls: bool) -> list[Figure]:
    model_mb, clients = options.or_else(options.model_mb, 1000.0, 1.0), options.or_else(options.clients, 2, 2)
    rounds, workers = options.or_else(options.rounds, 4, 2), options.workers or 1
    size = int(model_mb * MB) // 4 * 4
    with_tls = "TLS" if tls else "plaintext"
    what = f"{model_mb:g} MB, {clients} clients{f', {workers} workers' if workers > 1 else ''}, {with_tls}"
    command = options.command("bulk")
    before = _plain(size, clients, tls=tls, smoke=options.smoke)
    progress(f"{what}: plain streams {before.streamed_s:.2f} s, writes {before.written_s:.2f} s; now {rounds} rounds")
    with federation(clients=clients, tls=tls, workers=workers, options=["--keep-models", "1"]) as place:
        course = place.run(elements=size // 4, rounds=WARM_UP + rounds, clients=clients, warm_up=WARM_UP)
    every = [course.first_s, *course.warming, *course.seconds]
    progress(f"{what}: {', '.join(f'{one:.2f}' for one in every)} s")
    after = _plain(size, clients, tls=tls, smoke=options.smoke)
    progress(f"{what}: plain streams {after.streamed_s:.2f} s, writes {after.written_s:.2f} s")
    streamed, written, cpu_s = ((one + other) / 2 for one, other in zip(before, after, strict=True))
    median = statistics.median(course.seconds)
    return [
        _judged(f"round, {what}", median, command, limit=streamed + written, target=TARGET, smoke=options.smoke),
        Figure.stated("  beside the gRPC streams alone (stretch: 1.5)", median, "s", command, beside=streamed),
        Figure.stated("  its processor time, beside that of the streams", course.cpu_s, "s", command, beside=cpu_s),
        Figure.stated("  its first round", course.first_s, "s", command, beside=streamed + written),
        *memory_figures(course, model_mb, what, command),
    ]


class _Plain(NamedTuple):
    """Seconds of the plain gRPC streams, and of plainly writing the uploads; processor seconds of the streams."""

    streamed_s: float
    written_s: float
    cpu_s: float


def _plain(size: int, clients: int, *, tls: bool, smoke: bool) -> _Plain:
    repeats = 1 if smoke else 3
    streamed = baselines.streams(size, clients, tls=tls, repeats=repeats)
    return _Plain(streamed.total_s, baselines.write_and_fsync(size, clients, repeats=repeats), streamed.cpu_s)


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


def _judged(name: str, value: float, command: str, *, limit: float, target: float, smoke: bool) -> Figure:
    if smoke:
        return Figure.stated(name, value, "s", command, beside=limit)
    return Figure.within(name, value, "s", command, limit=limit, target=target)
