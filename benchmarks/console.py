"""The console of a long run with many participants: seconds, processor seconds and bytes of its pages.

The database is written as a server leaves it: an ended run with every participant a member of every round. Server and
console run in separate processes. The first view of a page is that of a console that has just started.
"""

from __future__ import annotations

import http.client
import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from sqlalchemy import Connection

from atoll.server.identity import ParticipantKind
from atoll.server.stores import Member, Participant, Round, Run, Store, participants, rounds, runs
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.messages import layout_to_proto
from benchmarks.federation import Federation, Nursery, participant_id
from benchmarks.figures import Figure
from benchmarks.options import Options, progress
from benchmarks.sampling import cpu_s_of
from benchmarks.starting import ATOLL, piped

RUN = "rabcdefghijkl"
BEGAN_AT = 1_790_000_000.0
FIRST_VIEW_S = 1.0
PAGE_BYTES = 500e3
_PER_BATCH = 50
"""Number of rounds written together."""
_JOB = """
[job]
name = "long"
rounds = {rounds}
[cohort]
size = {clients}
[model]
initial = "model.safetensors"
"""
_TIMEOUT_S = 300.0


class View(NamedTuple):
    """The cost of one page: seconds, processor seconds of console and server, bytes."""

    seconds: float
    console_s: float
    server_s: float
    size_bytes: int


def run(options: Options) -> list[Figure]:
    """Figures of 1,000 rounds of 1,000 participants, or as many as ``--rounds`` and ``--clients`` say."""
    clients, count = options.or_else(options.clients, 1000, 20), options.or_else(options.rounds, 1000, 20)
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder, Nursery(Path(folder)) as nursery:
        place = Federation(Path(folder), nursery, tls=False)
        began = time.monotonic()
        fill(place.data, clients, count)
        progress(f"{clients} participants, {count} rounds: written in {time.monotonic() - began:.0f} s")
        place.start_server("--no-metrics")
        return _figures(place, f"{count} rounds, {clients} participants", count, options.command("console"))


def fill(data: Path, clients: int, count: int) -> None:
    """Write the database of an ended run."""
    store = Store.open(data)
    try:
        store.writer.perform(lambda connection: _begun(connection, clients, count)).result()
        for start in range(0, count, _PER_BATCH):
            numbers = range(start, min(start + _PER_BATCH, count))
            store.writer.perform(partial(_played, clients=clients, numbers=numbers)).result()
    finally:
        store.close()


def _begun(connection: Connection, clients: int, count: int) -> None:
    layout = layout_to_proto(Layout((TensorSpec("w", (4,), Dtype.FLOAT32),))).SerializeToString()
    job, blob = _JOB.format(rounds=count, clients=clients), "0" * 64
    runs.add(
        connection,
        Run(RUN, "long", job, layout, blob, blob, count, "finished", "operator", BEGAN_AT, count, finished_at=BEGAN_AT),
    )
    for number in range(clients):
        name = participant_id(number)
        participants.add(connection, Participant(name, f"site-{number}", ParticipantKind.EDGE, BEGAN_AT, examples=100))


def _played(connection: Connection, clients: int, numbers: range) -> None:
    for number in numbers:
        at = BEGAN_AT + 60 * number
        metrics = tuple((name, 1 / (1 + number)) for name in ("eval/loss", "server/accuracy", "server/loss"))
        steps = tuple((name, 1.0) for name in ("draw", "prepare", "collect", "aggregate", "publish"))
        rounds.put(
            connection,
            Round(
                RUN, number, 0, "train", "released", at, "the cohort has reported", "uniform", 7, clients, clients,
                clients * 9 // 10, 100 * clients, at, at + 60, at + 50, "0" * 64, number, metrics, steps,
            ),
        )  # fmt: skip
        rounds.put_members(connection, (_member(number, one, at) for one in range(clients)))


def _member(number: int, one: int, at: float) -> Member:
    missed = (number + one) % 10 == 0
    status, size_bytes = ("timed_out", 0) if missed else ("reported", 40_000)
    claimed = () if missed else (("download", 1.0), ("fit", 20.0))
    return Member(
        RUN, number, 0, participant_id(one), status, "", 100, 100, size_bytes,
        at, at + 1, at + 25, None if missed else at + 30 + one % 20, at + 31, at + 50, claimed,
    )  # fmt: skip


def _figures(place: Federation, what: str, count: int, command: str) -> list[Figure]:
    found: list[Figure] = []
    with _Console(place) as console:
        pages = [("first view of the run", f"/runs/{RUN}"), ("the run again", f"/runs/{RUN}")]
        pages += [("its last page of rounds", f"/runs/{RUN}?page={-(-count // 50)}")]
        pages += [("a round", f"/runs/{RUN}/rounds/{count}"), ("participants", "/participants"), ("runs", "/")]
        for name, path in pages:
            view = console.view(path)
            named = f"{what}: {name}"
            found += [
                Figure.at_most(named, view.seconds, "s", FIRST_VIEW_S, command),
                Figure.stated("  processor of the console", view.console_s, "s", command),
                Figure.stated("  processor of the server", view.server_s, "s", command),
                Figure.at_most("  size", view.size_bytes / 1e3, "KB", PAGE_BYTES / 1e3, command),
            ]
    return found


class _Console:
    """A console in its own process, and a session with it."""

    def __init__(self, place: Federation) -> None:
        assert place.server is not None
        self._server = place.server.pid
        self._command = [*ATOLL, "console", "--insecure", "--server", place.address, "--port", "0", "--json"]
        self._environment = place.environment
        self._stack = ExitStack()

    def __enter__(self) -> _Console:
        piping = piped(self._command, self._environment | {"PYTHONUNBUFFERED": "1"})
        self._process = self._stack.enter_context(piping)
        assert self._process.stdout is not None
        link = urlsplit(json.loads(self._process.stdout.readline())["link"])
        self._host, self._cookie = link.netloc, ""
        self._cookie = self._ask(link.path)[1].partition(";")[0]
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def view(self, path: str) -> View:
        """Load one page."""
        pids: Sequence[int] = (self._process.pid, self._server)
        before, began = [cpu_s_of([pid]) for pid in pids], time.monotonic()
        size_bytes, _ = self._ask(path)
        seconds = time.monotonic() - began
        console_s, server_s = (cpu_s_of([pid]) - was for pid, was in zip(pids, before, strict=True))
        return View(seconds, console_s, server_s, size_bytes)

    def _ask(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self._host, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", path, headers={"cookie": self._cookie})
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != http.client.OK:
                raise RuntimeError(f"{path}: {answer.status}: {os.fsdecode(content[:500])}")
            return len(content), answer.headers.get("set-cookie", "")
        finally:
            connection.close()
