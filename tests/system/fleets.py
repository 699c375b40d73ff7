"""Servers of one federation at one database and one bucket, each behind its own networks, which can fail."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path

import grpc

from atoll.server.buckets import BucketPlace
from tests.object_storage import CREDENTIALS
from tests.patience import WAIT_S, until_now
from tests.system.operators import Operator
from tests.system.processes import Nursery, atoll
from tests.system.proxy import Proxy, Weather
from tests.system.servers import Server

_LOOK_S = 0.1
SLOW_S = 0.2
"""The longest time that a piece of at most 16 KiB takes to a slow bucket."""


class Fault(StrEnum):
    """A way for a server to fail: its process dies, it freezes, or its machine is cut off.

    A cut-off machine reaches neither database, bucket, the other servers nor participants.
    """

    KILL = "kill"
    FREEZE = "freeze"
    ISOLATE = "isolate"


@dataclass
class Member:
    """One server, and the networks to its database and bucket, and from the other servers."""

    server: Server
    database: Proxy
    bucket: Proxy
    inward: tuple[Proxy, Proxy]
    """From the other servers, to its main and enrolment ports."""

    @property
    def works(self) -> bool:
        """Whether it is active."""
        return self._answers("/active")

    @property
    def ready(self) -> bool:
        """Whether it serves participants."""
        return self._answers("/readyz")

    def _answers(self, path: str) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port + 3, timeout=0.5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()


class Fleet:
    """Servers, one of them active, and a load balancer that spreads participants over all.

    Args:
        members: the servers.
        entrances: see below.
        folder: where servers and participants write their logs.

    Attributes:
        entrances: the balancer's entrances, one for each participant; each leads to a ready server.
        failovers: each fault of the active server, with the seconds until another server was active.
    """

    def __init__(self, members: list[Member], entrances: list[Proxy], folder: Path) -> None:
        self.members, self._folder = members, folder
        self.entrances = entrances
        self._behind = list(members)
        self.failovers: list[tuple[Fault, float]] = []

    def leader(self, apart_from: Member | None = None) -> Member:
        """Wait until a server is active.

        Raises:
            AssertionError: if none is in time.
        """
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            for member in self.members:
                if member is not apart_from and member.works:
                    return member
            time.sleep(_LOOK_S)
        raise AssertionError(self._account())

    def standby(self) -> Member:
        """Wait until a server stands by and serves participants.

        Raises:
            AssertionError: if none is in time.
        """
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            for member in self.members:
                if member.ready and not member.works:
                    return member
            time.sleep(_LOOK_S)
        raise AssertionError(self._account())

    def spread(self) -> None:
        """Spread the participants over the ready servers again."""
        for number, member in enumerate(self.members):
            if self._behind[number] is not member and member.ready:
                self._lead(number, member)

    def _lead_away(self, failed: Member) -> None:
        """Cut the connections to a failing server, like a balancer, and redirect them to the active server."""
        leader = self.leader(apart_from=failed)
        for number, behind in enumerate(self._behind):
            if behind is failed:
                self._lead(number, leader)

    def _lead(self, number: int, member: Member) -> None:
        self._behind[number] = member
        self.entrances[number].lighten()
        self.entrances[number].turn_to(member.server.address)

    def _account(self) -> str:
        """Which server each participant is led to, and the ends of all logs."""
        led = ", ".join(one.server.name for one in self._behind)
        logs = (f"{path.name}:\n{path.read_text()[-4000:]}" for path in sorted(self._folder.rglob("*.log")))
        return "\n".join((f"participants are led to {led}", *logs))

    @contextlib.contextmanager
    def operator(self) -> Iterator[Operator]:
        """The operator of the active server; an error carries the ends of all logs."""
        operator = Operator.of(self.leader().server.data / "operator.json")
        try:
            yield operator
        except AssertionError as error:
            error.add_note(self._account())
            raise
        finally:
            operator.close()

    def finished(self, run: str) -> None:
        """Wait for the end of a run that must succeed, at whichever server is active: another may take over meanwhile.

        Raises:
            AssertionError: if it fails, or is not over in time.
        """
        until = time.monotonic() + WAIT_S
        while True:
            try:
                with self.operator() as operator:
                    return operator.finished(run)
            except AssertionError as error:
                if not isinstance(error.__cause__, grpc.RpcError) or time.monotonic() > until:
                    raise

    def fail(self, fault: Fault) -> None:
        """Make the active server fail; returns when another one is active and the failed one is back."""
        failed, began = self.leader(), time.monotonic()
        self._begin(failed, fault)
        self.leader(apart_from=failed)
        self.failovers.append((fault, time.monotonic() - began))
        self._lead_away(failed)
        self._end(failed, fault)

    def fail_standby(self, fault: Fault) -> None:
        """Make a standby fail, and let it recover when its participants are elsewhere."""
        failed = self.standby()
        self._begin(failed, fault)
        self._lead_away(failed)
        self._end(failed, fault)

    def _begin(self, failed: Member, fault: Fault) -> None:
        match fault:
            case Fault.KILL:
                failed.server.kill()
            case Fault.FREEZE:
                failed.server.process.send(signal.SIGSTOP)
            case Fault.ISOLATE:
                self._darken(failed)

    def _end(self, failed: Member, fault: Fault) -> None:
        match fault:
            case Fault.KILL:
                failed.server.launch()
            case Fault.FREEZE:
                failed.server.process.send(signal.SIGCONT)
            case Fault.ISOLATE:
                for network in self._networks(failed):
                    network.lighten()

    def _darken(self, failed: Member) -> None:
        """Cut a server's machine off."""
        for network in (failed.database, failed.bucket, *failed.inward):
            network.darken()
        for number, behind in enumerate(self._behind):
            if behind is failed:
                self.entrances[number].darken()
        for other in self.members:
            if other is not failed:
                for network in other.inward:
                    network.darken(failed.server.process.pid)

    def _networks(self, failed: Member) -> Iterator[Proxy]:
        yield from (failed.database, failed.bucket)
        for member in self.members:
            yield from member.inward

    def lose_bucket(self, seconds: float) -> None:
        """Cut the active server off from the bucket for a while."""
        with _cut(self.leader().bucket):
            time.sleep(seconds)

    @contextlib.contextmanager
    def without_database(self) -> Iterator[None]:
        """Cut all servers off from the database."""
        with contextlib.ExitStack() as stack:
            for member in self.members:
                stack.enter_context(_cut(member.database))
            yield

    def slow_bucket(self, seconds: float) -> None:
        """Have each piece of what the active server and the bucket send each other take its time, for a while."""
        slow = self.leader().bucket
        slow.blow(Weather(delay_s=SLOW_S))
        time.sleep(seconds)
        slow.blow(Weather())

    def lose_peers(self, seconds: float) -> None:
        """Cut the active server off from the other servers for a while; each reaches database and bucket.

        Those that stand by reach it through this network, if it has just taken over a moment later.
        """
        main, enrolment = self.leader().inward
        until_now(lambda: main.connections > 0)
        with _cut(main), _cut(enrolment):
            time.sleep(seconds)


@contextlib.contextmanager
def _cut(network: Proxy) -> Iterator[None]:
    network.cut()
    try:
        yield
    finally:
        network.mend()


@contextlib.contextmanager
def fleet(nursery: Nursery, size: int, database: str, bucket: BucketPlace) -> Iterator[Fleet]:
    """A fleet that runs while inside.

    Args:
        nursery: holds the processes.
        size: number of servers.
        database: URL of an empty PostgreSQL database, with the folder of its socket as ``host``.
        bucket: an empty place on a service of this machine.
    """
    name, _, folder = database.rpartition("/")[2].partition("?host=")
    socket = f"unix:{folder.replace('%2F', '/')}/.s.PGSQL.5432"
    with contextlib.ExitStack() as stack:
        members: list[Member] = []
        for number in range(size):
            to_database = stack.enter_context(Proxy(socket))
            to_bucket = stack.enter_context(Proxy(bucket.endpoint.removeprefix("http://")))
            settings = {
                "database": f"postgresql://postgres@{to_database.address}/{name}",
                "blobs": bucket.url,
                "blobs_endpoint": f"http://{to_bucket.address}",
            }
            config, host = nursery.folder / f"server-{number}.toml", f"127.0.2.{number + 1}"
            text = "".join(f'{key} = "{value}"\n' for key, value in settings.items())
            config.write_text(f'peer_host = "{host}"\n[storage]\n{text}')
            server = Server(nursery, f"server-{number}", "--config", str(config))
            server.env = CREDENTIALS
            main, enrolment = (
                stack.enter_context(Proxy(f"127.0.0.1:{port}", host=host, port=port))
                for port in (server.port, server.port + 1)
            )
            stack.callback(server.close)
            members.append(Member(server, to_database, to_bucket, (main, enrolment)))
            _begin(server, members[0].server, settings["database"])
        entrances = [stack.enter_context(Proxy(member.server.address)) for member in members]
        yield Fleet(members, entrances, nursery.folder)


def _begin(server: Server, first: Server, database: str) -> None:
    """Start the first server, or have another one stand by, which reaches the database by another address."""
    if server is first:
        server.start()
        return
    atoll("server", "standby", str(server.data), "--data", str(first.data))
    (server.data / "database.json").write_text(json.dumps({"database": database}))
    server.launch()
    server.process.wait_for_log("standing by: ")
