"""Check-ins: what streams at rest take, how soon a cohort is invited, and how many single calls a core answers.

The rates are by the server's processor time, not by the clock, so that the participants beside it do not count. The
server's limits on check-ins are raised: what is measured is their cost, not the pace that it asks for.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from benchmarks.connected import cpu_s, share_of_a_core
from benchmarks.federation import Federation, federation, write_zeros
from benchmarks.figures import Figure
from benchmarks.options import Options, progress
from benchmarks.sampling import memory_of

CALLERS = 16
PER_S = 1000.0
STREAMS, TARGET_STREAMS = 1000, 10_000
MOST_BYTES, MOST_SHARE, INVITED_S = 1e9, 5.0, 1.0
REST_S = 20.0
LEAVE_S = 300.0
_WARM = 20
"""Streams that come and go first: the first enrolments load code and touch memory, about 50 MB in all."""
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
size = {clients}
[evaluation]
before_training = false
final = false
"""
ELEMENTS = 2560


def run(options: Options) -> list[Figure]:
    """Rates of single calls; memory, processor time and invitations of streams."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as settings:
        settings.write(_SETTINGS)
        settings.flush()
        return [*_rates(options, settings.name), *_streams(options, settings.name)]


def _rates(options: Options, settings: str) -> Iterator[Figure]:
    command, callers = options.command("fleet"), options.or_else(None, CALLERS, 2)
    for name, way, usual in (("connection kept", "unary", 20_000), ("a TLS connection each", "phones", 2_000)):
        calls = 20 if options.smoke else usual
        progress(f"{calls} unary check-ins, {name}")
        with federation(clients=0, options=("--config", settings)) as place:
            spent_s = _spent_s(place, callers, way, calls)
        rate = calls / max(spent_s, 1e-9)
        what = f"unary check-ins per second of processor time, {name}"
        if options.smoke or way == "phones":
            yield Figure.stated(what, rate, "1/s", command)
        else:
            yield Figure.at_least(what, rate, "1/s", PER_S, command)


def _spent_s(place: Federation, callers: int, way: str, calls: int) -> float:
    """Processor seconds of the server for so many calls."""
    assert place.server is not None
    starting, announcing = os.pipe()
    with _crowd(place, callers, way, str(calls), start=starting) as channel, os.fdopen(announcing, "w") as start:
        before = cpu_s(place.server.pid)
        start.write("go\n")
        start.flush()
        _expect(place, channel, "done")
        return cpu_s(place.server.pid) - before


def _streams(options: Options, settings: str) -> Iterator[Figure]:
    command, count = options.command("fleet"), options.or_else(options.clients, STREAMS, 4)
    with federation(clients=0, options=("--config", settings)) as place:
        assert place.server is not None
        with _crowd(place, 2 if options.smoke else _WARM, "stream", name="warm"):
            pass
        before = memory_of(place.server.pid).anonymous
        progress(f"{count} streams")
        with _crowd(place, count, "stream") as channel:
            share = share_of_a_core(place.server.pid, 1.0 if options.smoke else REST_S)
            each = (memory_of(place.server.pid).anonymous - before) / count
            invited_s, spent_s = _invited(place, channel, count)
    name = f"{count} idle streams"
    if options.smoke:
        yield Figure.stated(f"{name}: server memory each", each / 1e3, "KB", command)
    else:
        yield Figure.at_most(
            f"{name}: server memory each", each / 1e3, "KB", MOST_BYTES / TARGET_STREAMS / 1e3, command
        )
    yield Figure.at_most(
        f"{name}: server CPU", 100 * share, "% of a core", MOST_SHARE * count / TARGET_STREAMS, command
    )
    yield Figure.at_most(f"a cohort of {count}: draw to last invitation", invited_s, "s", INVITED_S, command)
    yield Figure.stated(f"a cohort of {count}: server CPU of its invitations", spent_s, "s", command)


def _invited(place: Federation, channel: IO[str], count: int) -> tuple[float, float]:
    """Seconds from the start of the draw to the last invitation, and processor seconds of the server meanwhile."""
    assert place.server is not None
    (place.place / "job.toml").write_text(_JOB.format(clients=count))
    write_zeros(place.place / "init.safetensors", ELEMENTS)
    before = cpu_s(place.server.pid)
    run = place.call("run", "submit", str(place.place / "job.toml"))["run"]
    last = float(_line(place, channel))
    spent_s = cpu_s(place.server.pid) - before
    shown = place.call("run", "show", run)
    place.call("run", "cancel", run)
    return last - float(shown["rounds"][-1]["created_at"]), spent_s


@contextmanager
def _crowd(
    place: Federation, count: int, way: str, *more: str, start: int | None = None, name: str = ""
) -> Iterator[IO[str]]:
    """Participants in a process of their own, once they are ready; gives what they say. They leave at the end."""
    name = name or way
    folder = place.place / name
    folder.mkdir()
    tokens = place.call("token", "new", "--count", str(count))["tokens"]
    (folder / "tokens").write_text("\n".join(tokens))
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "benchmarks.light_crowd", str(folder), str(folder / "tokens"), str(writing), way]
    process = place.start_process([*command, *more], name, keep_open=(writing,), standard_input=start)
    os.close(writing)
    if start is not None:
        os.close(start)
    with os.fdopen(reading) as channel:
        _expect(place, channel, "ready", name)
        try:
            yield channel
        finally:
            process.terminate()
            process.wait(LEAVE_S)


def _expect(place: Federation, channel: IO[str], word: str, name: str = "") -> None:
    if (line := channel.readline().strip()) != word:
        raise RuntimeError(f"{line!r} instead of {word!r}: {place.log(name)[-2000:] if name else ''}")


def _line(place: Federation, channel: IO[str]) -> str:
    line = channel.readline()
    if not line:
        raise RuntimeError(f"the streams ended: {place.log('stream')[-2000:]}")
    return line
