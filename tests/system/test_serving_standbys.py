"""Servers that stand by serve participants: split over them, through deaths and take-overs, a run has the same bits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from urllib.request import urlopen

import pytest

from atoll.server.buckets import BucketPlace
from tests.object_storage import CREDENTIALS
from tests.patience import WAIT_S
from tests.postgresql import DatabaseServer
from tests.system.clients import Client
from tests.system.conftest import Hire, Serve
from tests.system.reference import (
    JOB,
    KILLED_JOB,
    KILLED_MODEL,
    KILLED_ROUNDS,
    MODEL,
    ROUNDS,
    SIZE,
    assert_undisturbed,
)
from tests.system.servers import Server
from tests.system.test_storage_backup import atoll

pytestmark = pytest.mark.system

SERVING = "serving participants as "
Standby = Callable[[str], Server]


@pytest.fixture
def first(serve: Serve, tmp_path: Path, database_server: DatabaseServer, s3: BucketPlace) -> Server:
    """The server at work, with PostgreSQL and S3."""
    config = tmp_path / "server.toml"
    settings = {"database": database_server.new("standbys"), "blobs": s3.url, "blobs_endpoint": s3.endpoint}
    config.write_text("[storage]\n" + "".join(f'{key} = "{value}"\n' for key, value in settings.items()))
    return serve("first", "--config", str(config))


@pytest.fixture
def stand_by(first: Server, tmp_path: Path) -> Standby:
    """Makes further servers, which stand by and serve participants."""

    def make(name: str) -> Server:
        server = Server(first.nursery, name, "--config", str(tmp_path / "server.toml"))
        server.env = CREDENTIALS
        atoll("server", "standby", str(server.data), "--data", str(first.data))
        server.launch()
        server.process.wait_for_log(SERVING)
        ready(server)
        return server

    return make


def page(server: Server, path: str) -> tuple[int, str]:
    """Status and body of a page of a server's health port."""
    connection = HTTPConnection("127.0.0.1", server.port + 3, timeout=WAIT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def ready(server: Server) -> None:
    """Wait until a server is ready for participants."""
    until = time.monotonic() + WAIT_S
    while page(server, "/readyz")[0] != HTTPStatus.OK:
        assert time.monotonic() < until, page(server, "/readyz")
        time.sleep(0.05)


def metric(server: Server, name: str) -> float:
    """The sum of a metric of a server."""
    with urlopen(f"http://127.0.0.1:{server.port + 3}/metrics", timeout=WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.split("{")[0].split()[0] == name)


def at(server: Server) -> tuple[str, str]:
    """The options of a client that goes to this server."""
    return "--server", server.address


def test_participants_split_over_servers_give_the_same_bits(
    first: Server, stand_by: Standby, hire: Hire, killed_undisturbed: bytes
) -> None:
    second = stand_by("second")
    assert page(second, "/at-work")[0] == HTTPStatus.SERVICE_UNAVAILABLE
    assert page(first, "/at-work")[0] == HTTPStatus.OK
    crew = hire(first)
    clients = [crew.start("Steady", *at(server), index=index) for index, server in enumerate((first, second, second))]
    for client in clients:
        client.wait("connected")
    run = first.operator.submit(KILLED_JOB, KILLED_MODEL)
    first.operator.finished(run)
    assert first.operator.model(run) == killed_undisturbed
    assert_undisturbed(first.operator, run, clients, KILLED_ROUNDS)
    received = [metric(server, "atoll_upload_bytes_total") for server in (first, second)]
    assert received[1] == 2 * received[0] > 0
    folds = [metric(server, "atoll_fold_duration_seconds_count") for server in (first, second)]
    assert folds == [KILLED_ROUNDS, 2 * KILLED_ROUNDS]
