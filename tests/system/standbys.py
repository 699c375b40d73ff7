"""Standbys of the system tests that serve participants; they share PostgreSQL and S3 with the first server."""

from __future__ import annotations

import time
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from urllib.request import urlopen

from atoll.server.buckets import BucketPlace
from tests.object_storage import CREDENTIALS
from tests.patience import WAIT_S
from tests.system.processes import atoll
from tests.system.servers import Server

SERVING = "serving participants as "
OFTEN = "[check_in]\nperiod_s = 1.0\nhold_s = 3.0\n"
"""A server that holds a call for up to 3 s lets about 0.75 to 2.25 s pass until a participant's next call."""
STEADY = "takeover_s = 60.0"
"""``[storage]`` for tests that freeze no server: on a busy machine a server can stand still for seconds."""


def write_config(file: Path, database: str, s3: BucketPlace) -> Path:
    """Write the settings that such servers share; returns the file."""
    settings = {"database": database, "blobs": s3.url, "blobs_endpoint": s3.endpoint}
    lines = "".join(f'{key} = "{value}"\n' for key, value in settings.items())
    file.write_text(f"{OFTEN}\n[storage]\n{STEADY}\n{lines}")
    return file


def standing_by(first: Server, name: str, config: Path, *options: str) -> Server:
    """Start a standby of ``first``, and wait until it serves participants."""
    server = Server(first.nursery, name, "--config", str(config), *options)
    server.env = CREDENTIALS
    atoll("server", "standby", str(server.data), "--data", str(first.data))
    server.launch()
    server.process.wait_for_log(SERVING)
    ready(server)
    return server


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


def metric(server: Server, name: str, process: str = "") -> float:
    """The sum of a metric of a server, or of one of its processes."""
    with urlopen(f"http://127.0.0.1:{server.port + 3}/metrics", timeout=WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.split("{")[0].split()[0] == name and process in line)
