"""An aggregator of the system tests: a real ``atoll aggregator start`` on loopback that can be restarted."""

from __future__ import annotations

import time
import urllib.request
from typing import Any

from atoll.wire.v1 import control_pb2, enrolment_pb2
from tests.patience import WAIT_S
from tests.ports import free_ports
from tests.system.processes import ATOLL, Nursery, Process
from tests.system.servers import Server

CONNECTED = "connected to the server"


class Site:
    """One aggregator's directory, and the process that works in it, if there is one now.

    Args:
        nursery: holds the processes.
        server: its server.
        name: of folder, logs and organisation.
        upstream: the server's address, if it is reached at another one.
    """

    def __init__(self, nursery: Nursery, server: Server, name: str, upstream: str = "") -> None:
        self.nursery = nursery
        self.server = server
        self.name = name
        self.data = nursery.folder / name
        self.port = free_ports()
        self.upstream = upstream
        self.facts: dict[str, Any] = {}
        self._token = token_of(server, organisation=name)
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        assert self._process is not None, f"aggregator {self.name} was not started"
        return self._process

    @property
    def id(self) -> str:
        return str(self.facts["name"])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> Site:
        """Start it, or start it again, and wait until it serves."""
        options = ["--data", str(self.data), "--port", str(self.port), "--token", self._token]
        if self.upstream:
            options += ["--upstream", self.upstream]
        links = self._process.log.count(CONNECTED) if self._process is not None else 0
        daemon = self.nursery.launch((*ATOLL, "aggregator", "start", *options), self.name + "-aggregator")
        self._process = daemon.process
        self.facts = daemon.serves()
        assert self.facts, f"{self.name} does not serve:\n{self.process.log[-4000:]}"
        self.linked(links + 1)
        return self

    def linked(self, count: int) -> None:
        """Wait until it has connected to the server this many times, according to its log, which restarts share."""
        until = time.monotonic() + WAIT_S
        while self.process.log.count(CONNECTED) < count:
            assert self.process.running, f"{self.name} ended:\n{self.process.log[-4000:]}"
            assert time.monotonic() < until, f"{self.name} does not connect:\n{self.process.log[-4000:]}"
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it, as a power cut would."""
        self.process.kill()

    def tokens(
        self,
        count: int,
        kind: enrolment_pb2.ParticipantKind.ValueType = enrolment_pb2.PARTICIPANT_KIND_EDGE,
        organisation: str = "",
    ) -> list[str]:
        """Join tokens of participants that connect to it."""
        request = control_pb2.CreateTokenRequest(
            organisation=organisation or self.name,
            kind=kind,
            lifetime_s=600.0,
            count=count,
            through=self.id,
        )
        return list(self.server.operator.stub.CreateToken(request, timeout=WAIT_S).tokens)

    def metric(self, name: str) -> float:
        """The value of one of its metrics."""
        with urllib.request.urlopen(f"http://{self.facts['metrics']}/metrics", timeout=WAIT_S) as page:
            lines = page.read().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith((name + " ", name + "_total ")))


def token_of(server: Server, *, organisation: str, hosts: tuple[str, ...] = ("127.0.0.1",)) -> str:
    """A join token for an aggregator."""
    request = control_pb2.CreateTokenRequest(
        organisation=organisation,
        kind=enrolment_pb2.PARTICIPANT_KIND_AGGREGATOR,
        lifetime_s=600.0,
        count=1,
        hosts=hosts,
    )
    return str(server.operator.stub.CreateToken(request, timeout=WAIT_S).tokens[0])
