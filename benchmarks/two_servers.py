"""A round over two servers compared with the same round at one: the cost of sharing transfers and folds.

Both have the same PostgreSQL, and a folder as their bucket, because the Python S3 service of ``fleet`` would limit
rounds of 100 MB. Each of the two servers has half of the participants; one is active, the other stands by as a gateway
of the first. Servers and participants share this machine, so the ratio is the cost of sharing. The processors, disk and
network of a second machine are not measured here.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.federation import Federation, federation
from benchmarks.figures import Figure
from benchmarks.options import Options, progress
from benchmarks.sampling import Sampler
from benchmarks.scraping import metric
from benchmarks.starting import ATOLL

MB = 1_000_000
PARTICIPANTS, SERVERS = 4, 2
TARGET = 1.2
WARM_UP = 3
_READY_S, _LOOK_S = 120.0, 0.05


@dataclass(frozen=True)
class _Share:
    """One server's average work in a round: payload bytes received, updates folded, processor seconds."""

    received_bytes: float
    folds: float
    cpu_s: float


@dataclass(frozen=True)
class _Course:
    """The measurements of a run.

    Attributes:
        seconds: of each measured round, from its opening to its release.
        shares: of each server, the active one first.
        cpu_s: processor seconds of a round, of all servers and participants.
    """

    seconds: list[float]
    shares: list[_Share]
    cpu_s: float


@dataclass(frozen=True)
class _Server:
    """A server's process, its address for participants, and that of its metrics."""

    pid: int
    address: str
    metrics: str


def figures(options: Options, new_database: Callable[[str], str]) -> Iterator[Figure]:
    """Round time relative to one server's, measured before and (except in a smoke run) after; each server's share.

    Args:
        options: of the benchmark.
        new_database: creates an empty PostgreSQL database of this name; returns its URL.
    """
    model_mb, participants = options.or_else(options.model_mb, 100.0, 1.0), options.or_else(None, PARTICIPANTS, SERVERS)
    name = f"{model_mb:g} MB, {participants} participants"

    def course(label: str, servers: int) -> _Course:
        progress(f"{name}, {servers} server{'s' if servers > 1 else ''}")
        with _servers(new_database(f"two-servers-{label}"), servers) as (place, running):
            return _measure(place, running, options, elements=int(model_mb * MB) // 4, participants=participants)

    alone, shared = [course("before", 1)], course("shared", SERVERS)
    if not options.smoke:
        alone.append(course("after", 1))
    yield from _compared(f"{name}, {SERVERS} servers", shared, alone, options)


@contextlib.contextmanager
def _servers(database: str, count: int) -> Iterator[tuple[Federation, list[_Server]]]:
    """An active server and standbys, with one database and one bucket."""
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder:
        bucket, config = Path(folder) / "bucket", Path(folder) / "server.toml"
        bucket.mkdir()
        config.write_text(f'[storage]\ndatabase = "{database}"\nblobs = "{bucket.as_uri()}"\n')
        options = ["--config", str(config), "--keep-models", "1"]
        with federation(clients=0, options=options) as place:
            assert place.server is not None, "federation starts it"
            running = [_Server(place.server.pid, place.address, place.metrics)]
            running += [_stand_by(place, f"standby-{number}", options) for number in range(1, count)]
            yield place, running


def _stand_by(place: Federation, name: str, options: Sequence[str]) -> _Server:
    """Start a standby, and wait until it serves participants.

    Raises:
        RuntimeError: if it does not.
    """
    from tests.ports import free_ports  # noqa: PLC0415 - of a checkout, as all that `fleet` starts

    data, port = place.place / name, free_ports()
    place.command("server", "standby", str(data))
    arguments = ["server", "start", "--data", str(data), "--port", str(port), "--log-level", "warning", *options]
    process = place.start_process([*ATOLL, *arguments], name)
    server = _Server(process.pid, f"127.0.0.1:{port}", f"127.0.0.1:{port + 3}")
    until = time.monotonic() + _READY_S
    while not _ready(server):
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"{name} does not serve participants:\n{place.log(name)[-4000:]}")
        time.sleep(_LOOK_S)
    return server


def _ready(server: _Server) -> bool:
    try:
        with urllib.request.urlopen(f"http://{server.metrics}/readyz", timeout=5):
            return True
    except OSError:  # it does not listen yet, or answers 503
        return False


def _measure(
    place: Federation, servers: list[_Server], options: Options, *, elements: int, participants: int
) -> _Course:
    """Train with the same number of participants at each server."""
    rounds, warm_up = options.or_else(options.rounds, 7, 2), 1 if options.smoke else WARM_UP
    for server in servers:
        place.start_clients(participants // len(servers), server=server.address)
    with Sampler({}, spenders=[server.pid for server in servers]) as sampler:
        course = place.run(elements=elements, rounds=warm_up + rounds, clients=participants, warm_up=warm_up)
    closed = [float(entry["closed_at"]) for entry in course.rounds]
    opened = [float(entry["opened_at"]) for entry in course.rounds]
    shares = [
        _Share(
            received_bytes=metric(server.metrics, "atoll_upload_bytes_total") / len(closed),
            folds=metric(server.metrics, "atoll_fold_duration_seconds_count") / len(closed),
            cpu_s=sampler.cpu_s(closed[warm_up - 1], closed[-1], server.pid) / rounds,
        )
        for server in servers
    ]
    seconds = [ended - began for began, ended in zip(opened, closed, strict=True)]
    return _Course(seconds[warm_up:], shares, course.cpu_s)


def _compared(name: str, shared: _Course, alone: list[_Course], options: Options) -> Iterator[Figure]:
    command = options.command("fleet")
    took_s = statistics.median(shared.seconds)
    alone_s = statistics.median([seconds for course in alone for seconds in course.seconds])
    release = f"{name} beside 1: invitation to release, median"
    if options.smoke:
        yield Figure.stated(release, took_s, "s", command, beside=alone_s)
    else:
        yield Figure.within(release, took_s, "s", command, limit=alone_s, target=TARGET)
    at_work, standby = shared.shares
    received = [share.received_bytes / MB for share in (at_work, standby)]
    yield Figure.equal("  received a round: at work, beside the standby", received[0], "MB", command, other=received[1])
    folded = "  updates folded a round: at work, beside the standby"
    yield Figure.equal(folded, at_work.folds, "", command, other=standby.folds)
    alone_cpu_s = statistics.mean([course.shares[0].cpu_s for course in alone])
    for which, spent_s in (
        ("server at work", at_work.cpu_s),
        ("standby", standby.cpu_s),
        ("both", at_work.cpu_s + standby.cpu_s),
    ):
        what = f"  processor time of a round, {which}, beside one server's"
        yield Figure.stated(what, spent_s, "s", command, beside=alone_cpu_s)
    every_s = statistics.mean([course.cpu_s for course in alone])
    whole = "  processor time of a round, servers and participants"
    yield Figure.stated(whole, shared.cpu_s, "s", command, beside=every_s)
