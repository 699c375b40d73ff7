"""Servers of one federation at one database and one bucket, each behind networks of its own that can fail."""

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

from atoll.server.buckets import BucketPlace
from tests.object_storage import CREDENTIALS
from tests.patience import WAIT_S
from tests.system.operators import Operator
from tests.system.processes import Nursery
from tests.system.proxy import Proxy
from tests.system.servers import Server
from tests.system.test_storage_backup import atoll

_LOOK_S = 0.02


class Fault(StrEnum):
    """How the server at work fails: its process dies, it stands still, or it is cut off from the database."""

    KILL = "kill"
    FREEZE = "freeze"
    ISOLATE = "isolate"


@dataclass
class Member:
    """One server, and the networks to its database and bucket."""

    server: Server
    database: Proxy
    bucket: Proxy

    @property
    def works(self) -> bool:
        """Whether its ``/readyz`` says that it is at work."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port + 3, timeout=0.5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()


class Fleet:
    """Servers, of which one is at work, and a balancer that leads to it.

    Attributes:
        failovers: each fault of the server at work, with the seconds until another one was at work.
    """

    def __init__(self, members: list[Member], balancer: Proxy) -> None:
        self.members = members
        self.balancer = balancer
        self.failovers: list[tuple[Fault, float]] = []

    def leader(self, apart_from: Member | None = None) -> Member:
        """Wait until a server is at work, and have the balancer lead to it.

        Raises:
            AssertionError: if none is in time.
        """
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            for member in self.members:
                if member is not apart_from and member.works:
                    self.balancer.turn_to(member.server.address)
                    return member
            time.sleep(_LOOK_S)
        raise AssertionError("\n".join(f"{one.server.name}:\n{one.server.process.log[-2000:]}" for one in self.members))

    @contextlib.contextmanager
    def operator(self) -> Iterator[Operator]:
        """The operator of the server at work."""
        operator = Operator.of(self.leader().server.data / "operator.json")
        try:
            yield operator
        finally:
            operator.close()

    def fail(self, fault: Fault) -> None:
        """Have the server at work fail; return when another one is at work, and the failed one stands by again."""
        failed = self.leader()
        began = time.monotonic()
        match fault:
            case Fault.KILL:
                failed.server.kill()
            case Fault.FREEZE:
                failed.server.process.send(signal.SIGSTOP)
            case Fault.ISOLATE:
                failed.database.darken()
        self.leader(apart_from=failed)
        self.failovers.append((fault, time.monotonic() - began))
        match fault:
            case Fault.KILL:
                failed.server.launch()
            case Fault.FREEZE:
                failed.server.process.send(signal.SIGCONT)
            case Fault.ISOLATE:
                failed.database.lighten()

    def lose_bucket(self, seconds: float) -> None:
        """Cut the server at work off from the bucket for a while."""
        cut = self.leader().bucket
        cut.cut()
        time.sleep(seconds)
        cut.mend()


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
            networks = [
                stack.enter_context(Proxy(target)) for target in (socket, bucket.endpoint.removeprefix("http://"))
            ]
            settings = {
                "database": f"postgresql://postgres@{networks[0].address}/{name}",
                "blobs": bucket.url,
                "blobs_endpoint": f"http://{networks[1].address}",
            }
            config = nursery.folder / f"server-{number}.toml"
            config.write_text("[storage]\n" + "".join(f'{key} = "{value}"\n' for key, value in settings.items()))
            server = Server(nursery, f"server-{number}", "--config", str(config))
            server.env = CREDENTIALS
            stack.callback(server.close)
            members.append(Member(server, *networks))
            _begin(server, members[0].server, settings["database"])
        balancer = stack.enter_context(Proxy(members[0].server.address))
        yield Fleet(members, balancer)


def _begin(server: Server, first: Server, database: str) -> None:
    """Start the first server, or have another one stand by, which reaches the database by another address."""
    if server is first:
        server.start()
        return
    atoll("server", "standby", str(server.data), "--data", str(first.data))
    (server.data / "database.json").write_text(json.dumps({"database": database}))
    server.launch()
    server.process.wait_for_log("standing by: ")
