"""Check-ins: the cost of idle streams, the time to invite a cohort, and the number of unary calls that a core answers.

Rates are per second of the server's processor time, not of the clock, so participants on the same machine do not count.
The server's limits on check-ins are raised, because the benchmark measures their cost, not the pace steering.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import IO

from atoll.wire.pacing import participant_ping_ms
from benchmarks.connected import cpu_s, share_of_a_core
from benchmarks.crowds import LEAVE_S, WARM, crowd, expect
from benchmarks.federation import Federation, federation, write_zeros
from benchmarks.figures import Figure
from benchmarks.options import Options, progress
from benchmarks.plain_peer import call_cpu_s
from benchmarks.sampling import memory_of

CALLERS = 16
PER_S = 1000.0
PLAIN_CALLS = 3.0
"""Most that a check-in may cost the server, in calls of a plain gRPC server that echoes: the same on every machine."""
MESSAGE_BYTES = 100
"""Size of a plain call's request and response, about that of a check-in and its answer."""
STREAMS, COHORT = 10_000, 1000
PER_PROCESS = 4000
"""Streams of one process: each needs four files, and a process may often open 20,000."""
CROWD = "benchmarks.light_crowd"
MOST_BYTES, MOST_SHARE, INVITED_S = 1e9, 5.0, 1.0
PING_S = 40.0
"""Interval of keepalive pings, in place of 10 s: pings are nearly all that idle streams take of the processor."""
REST_S = 2 * participant_ping_ms(PING_S) / 1000
"""Two pings of each stream."""
_SETTINGS = """
[limits]
enrolments_per_minute = 1000000
check_ins_per_minute = 1000000
calls_per_minute = 10000000
[check_in]
per_s = 100000.0
"""
_JOB = """
[job]
name = "cohort"
rounds = 1
[model]
initial = "init.safetensors"
[cohort]
size = {size}
[evaluation]
before_training = false
final = false
"""
ELEMENTS = 2560


def run(options: Options) -> list[Figure]:
    """Rates of unary calls; memory, processor time and invitations of streams."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as settings:
        settings.write(_SETTINGS)
        settings.flush()
        return [*_rates(options, settings.name), *_streams(options, settings.name)]


def _rates(options: Options, settings: str) -> Iterator[Figure]:
    callers = options.or_else(None, CALLERS, 2)
    for name, way, usual in (("connection kept", "unary", 20_000), ("a TLS connection each", "phones", 2_000)):
        calls = 20 if options.smoke else usual
        progress(f"{calls} unary check-ins, {name}")
        with federation(clients=0, options=("--config", settings)) as place:
            spent_s = _spent_s(place, callers, way, calls)
        yield from _rate(options, name, calls, max(spent_s, 1e-9), kept=way == "unary")


def _rate(options: Options, name: str, calls: int, spent_s: float, *, kept: bool) -> Iterator[Figure]:
    command, rate = options.command("fleet"), calls / spent_s
    what = f"unary check-ins per second of processor time, {name}"
    if not kept:
        yield Figure.stated(what, rate, "1/s", command)
        return
    plain_s = call_cpu_s(options.or_else(None, CALLERS, 2), calls, bytes(MESSAGE_BYTES))
    each_ms, plain_ms = 1e3 * spent_s / calls, 1e3 * max(plain_s, 1e-9)
    cost = "  server CPU of one, beside a plain gRPC call with mutual TLS"
    if options.smoke:
        yield Figure.stated(what, rate, "1/s", command)
        yield Figure.stated(cost, each_ms, "ms", command, beside=plain_ms)
    else:
        yield Figure.at_least(what, rate, "1/s", PER_S, command)
        yield Figure.within(cost, each_ms, "ms", command, limit=plain_ms, target=PLAIN_CALLS)


def _spent_s(place: Federation, callers: int, way: str, calls: int) -> float:
    """Processor seconds of the server for this number of calls."""
    assert place.server is not None
    starting, announcing = os.pipe()
    crowded = crowd(place, CROWD, callers, way, str(calls), name=way, per_process=callers, start=starting)
    with crowded as (channel,), os.fdopen(announcing, "w") as start:
        before = cpu_s(place.server.pid)
        start.write("go\n")
        start.flush()
        expect(place, channel, "done")
        return cpu_s(place.server.pid) - before


def _streams(options: Options, settings: str) -> Iterator[Figure]:
    command, count = options.command("fleet"), options.or_else(options.clients, STREAMS, 4)
    cohort, most_bytes = min(COHORT, count), MOST_BYTES / STREAMS
    with federation(clients=0, options=("--config", settings, "--ping-s", f"{PING_S:g}")) as place:
        assert place.server is not None
        with crowd(place, CROWD, 2 if options.smoke else WARM, "stream", name="warm", per_process=WARM):
            pass
        before = memory_of(place.server.pid).anonymous
        progress(f"{count} streams")
        per_process = 2 if options.smoke else PER_PROCESS
        with crowd(place, CROWD, count, "stream", name="stream", per_process=per_process) as channels:
            share = share_of_a_core(place.server.pid, 1.0 if options.smoke else REST_S)
            each = (memory_of(place.server.pid).anonymous - before) / count
            invited_s, spent_s = _invited(place, channels, cohort)
    name = f"{count} idle streams, --ping-s {PING_S:g}"
    if options.smoke:
        yield Figure.stated(f"{name}: server memory each", each / 1e3, "KB", command)
    else:
        yield Figure.at_most(f"{name}: server memory each", each / 1e3, "KB", most_bytes / 1e3, command)
    yield Figure.at_most(f"{name}: server CPU", 100 * share, "% of a core", MOST_SHARE * count / STREAMS, command)
    drawn = f"a cohort of {cohort} of them"
    yield Figure.at_most(f"{drawn}: draw to last invitation", invited_s, "s", INVITED_S, command)
    yield Figure.stated(f"{drawn}: server CPU of its invitations", spent_s, "s", command)


def _invited(place: Federation, channels: Sequence[IO[str]], cohort: int) -> tuple[float, float]:
    """Seconds from the start of the draw to the last invitation, and processor seconds of the server meanwhile."""
    assert place.server is not None
    (place.place / "job.toml").write_text(_JOB.format(size=cohort))
    write_zeros(place.place / "init.safetensors", ELEMENTS)
    before = cpu_s(place.server.pid)
    run = place.call("run", "submit", str(place.place / "job.toml"))["run"]
    last = _last_of(place, channels, cohort)
    spent_s = cpu_s(place.server.pid) - before
    shown = place.call("run", "show", run)
    place.call("run", "cancel", run)
    return last - float(shown["rounds"][-1]["created_at"]), spent_s


def _last_of(place: Federation, channels: Sequence[IO[str]], count: int) -> float:
    """The time of the last of this number of invitations, over all processes."""
    lines: SimpleQueue[str] = SimpleQueue()

    def listen(channel: IO[str]) -> None:
        for line in channel:
            lines.put(line)
        lines.put("")

    for channel in channels:
        Thread(target=listen, args=(channel,), daemon=True).start()
    found = [lines.get(timeout=LEAVE_S) for _ in range(count)]
    if not all(found):
        raise RuntimeError(f"streams ended: {place.log('stream-0')[-2000:]}")
    return max(map(float, found))
