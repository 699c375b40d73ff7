"""A server with PostgreSQL: the same bits if the database is moved mid-round or unavailable for a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgresql import DatabaseServer
from tests.system.conftest import Hire, Serve
from tests.system.mid_round import mid_round
from tests.system.processes import atoll
from tests.system.reference import JOB, MODEL, SIZE
from tests.system.test_server_crashes import assert_each_counted_once

pytestmark = pytest.mark.system


def test_moved_in_mid_round_there_and_back_the_run_ends_with_the_same_bits(
    serve: Serve, hire: Hire, database_server: DatabaseServer, reference_model: bytes
) -> None:
    server, url = serve("moved"), database_server.new("moved")
    crew = hire(server)
    done = [crew.start("Steady", index=0), crew.start("Steady", index=1)]
    at_work = crew.start("Held", index=2, rounds=[1, 2])
    run = server.operator.submit(JOB, MODEL)
    for held_round, place in ((1, url), (2, "sqlite")):
        at_work.wait("held", round=held_round)
        for client in done:
            client.wait("reported", round=held_round)
        server.kill()
        database_server.until_left("moved")  # a command waits 3 s for that
        moved = atoll("server", "migrate", "--data", str(server.data), "--database", place)
        assert moved["rows"]["participants"] == SIZE
        server.start()
        at_work.go()
    server.operator.finished(run)
    assert server.operator.model(run) == reference_model
    assert_each_counted_once(server.operator, run)


def test_the_database_goes_away_in_mid_round_and_the_run_goes_on_when_it_is_back(
    serve: Serve, hire: Hire, database_server: DatabaseServer, reference_model: bytes, tmp_path: Path
) -> None:
    config = tmp_path / "server.toml"
    config.write_text(f'[storage]\ndatabase = "{database_server.new("away")}"\n')
    server = serve("away", "--config", str(config))
    middle = mid_round(server, hire(server))
    database_server.stop()
    middle.at_work.go()
    server.process.wait_for_log("the database server cannot be used")
    database_server.start()
    server.operator.finished(middle.run)
    assert server.operator.model(middle.run) == reference_model
    assert_each_counted_once(server.operator, middle.run)
    assert not (server.data / "atoll.sqlite3").exists()
