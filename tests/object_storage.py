"""A real S3 service (moto's) in a separate process; ``conftest.py`` of a folder imports the fixtures."""

import http.client
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest

from atoll.server.buckets import BucketPlace, parse_place

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret", "AWS_REGION": "us-east-1"}
_SERVE = """
import logging, sys
from moto.server import ThreadedMotoServer
if sys.argv[1]:
    logging.basicConfig(filename=sys.argv[1], level=logging.INFO)
else:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""
_NUMBERS = itertools.count()


class ObjectStore:
    """An S3 service that can be killed, with everything in it."""

    def __init__(self, endpoint: str, process: "subprocess.Popen[str]") -> None:
        self.endpoint = endpoint
        self.process = process

    def new(self, prefix: str = "atoll/models") -> BucketPlace:
        """Make an empty bucket."""
        bucket = f"bucket-{os.getpid()}-{next(_NUMBERS)}"
        connection = http.client.HTTPConnection(self.endpoint.removeprefix("http://"))
        connection.request("PUT", f"/{bucket}")
        assert connection.getresponse().status == HTTPStatus.OK
        connection.close()
        return parse_place(f"s3://{bucket}/{prefix}", self.endpoint)


@contextmanager
def running(log: Path | None = None) -> Iterator[ObjectStore]:
    """An S3 service, which ends with the ``with`` block or with this process; ``log``: a line for each request."""
    arguments = [sys.executable, "-c", _SERVE, str(log or "")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield ObjectStore(f"http://127.0.0.1:{int(process.stdout.readline())}", process)
        finally:
            process.kill()


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """An S3 service of the test run."""
    with running() as started:
        yield started


@pytest.fixture
def s3(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> BucketPlace:
    """An empty bucket, and credentials for it in the environment."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return object_store.new()
