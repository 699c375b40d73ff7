from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from atoll.operator.errors import UnreachableError
from atoll.server.cli.server import server
from atoll.server.cli.storage import prune, storage
from atoll.server.ingest.spool import Spool
from atoll.server.stores import LoggedEvent, Model, Store, event_log, models, runs
from tests.server.stores.samples import NOW, RUN, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A server's data directory: a run with a log, a model with its state, an upload, and a blob that no row names."""
    store = Store.open(tmp_path)
    names = []
    for size in (1000, 2000, 3000):
        with store.blobs.create() as writer:
            writer.write(bytes(size))
            names.append(writer.commit().name)
    store.writer.submit(runs.add, run()).result()
    store.writer.submit(models.add, Model(RUN, 0, None, names[0], 1000, NOW, (("momentum", names[1]),))).result()
    store.writer.submit(event_log.append, RUN, [LoggedEvent(0, NOW, "started", "{}")]).result()
    store.close()
    folder = Spool(tmp_path / "spool").root / RUN / "0.0"
    folder.mkdir(parents=True)
    (folder / "x.data").write_bytes(bytes(500))
    return tmp_path


def test_what_is_held_is_shown_by_kind_and_run(data: Path) -> None:
    result = CliRunner().invoke(server, ["storage", "--data", str(data), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    held = {(one["kind"], one["run"]): (one["count"], one["stored_bytes"]) for one in found["held"]}
    assert held["uploads", RUN] == (1, 500)
    assert held["event log", RUN][0] == 1
    for kind, owner, least in (("models", RUN, 1000), ("optimiser states", RUN, 2000), ("unnamed blobs", "", 3000)):
        count, stored = held[kind, owner]
        assert count == 1
        assert least < stored < least + 200
    outside = [one["stored_bytes"] for one in found["held"] if not one["in_database"]]
    assert found["stored_bytes"] == sum(outside)
    assert found["free_bytes"] > 0


def test_the_table_says_what_is_in_the_database(data: Path) -> None:
    lines = CliRunner().invoke(storage, ["--data", str(data)]).stdout.splitlines()
    assert any("event log" in line and "in the database" in line for line in lines)
    assert "free" in lines[-1]


def test_a_place_that_is_none_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(storage, ["--data", str(tmp_path)])
    assert result.exit_code == 1
    assert f"{tmp_path} is not a server's data directory" in result.output


def test_pruning_is_the_servers(fake: Any, invoke: Callable[..., Result]) -> None:
    result = invoke(prune)
    assert result.exit_code == 0
    assert "3 MB removed" in result.stdout
    assert not fake.control.asked[0].dry_run


def test_a_dry_run_only_tells(fake: Any, invoke: Callable[..., Result]) -> None:
    found = json.loads(invoke(prune, "--dry-run", "--json").stdout)
    assert fake.control.asked[0].dry_run
    assert found[0] == {"kind": "events", "run": "ra", "count": 7, "stored_bytes": 1000}


def test_without_a_server_the_error_says_that_only_a_server_prunes() -> None:
    with socket.socket() as taken:  # bound and not listening: no other server answers there
        taken.bind(("127.0.0.1", 0))
        result = CliRunner().invoke(prune, ["--insecure", "--server", f"127.0.0.1:{taken.getsockname()[1]}"])
    assert result.exit_code == UnreachableError.exit_code
    assert "What to do: only a running server prunes" in result.output
    assert "atoll server start" in result.output
