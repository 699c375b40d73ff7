"""A server of the system tests: a real ``atoll server start`` on loopback that can be killed and started again."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.patience import kept
from tests.ports import free_ports
from tests.system.operators import Operator
from tests.system.processes import ATOLL, HERE, Daemon, Nursery, Process

RESUMES_WITHIN_S = 10.0
"""From the start of a killed server's successor until its runs continue.

That is its own start (without loading its modules, which takes about a second and a half, see ``forked``), and
participants that try again after at most 5 s.
"""


class Server:
    """One data directory and the process that serves it, if one is running.

    Args:
        nursery: holds the processes.
        name: of folder and logs.
        options: further arguments of ``atoll server start``.
        insecure: without TLS.

    Attributes:
        prefix: words before its command, for what it needs around it.
        env: more of its environment.
    """

    def __init__(self, nursery: Nursery, name: str, *options: str, insecure: bool = False) -> None:
        self.nursery = nursery
        self.name = name
        self.data = nursery.folder / name
        self.insecure = insecure
        self.port = free_ports()
        self.options = (*options, "--insecure") if insecure else options
        self.prefix: tuple[str, ...] = ()
        self.env: dict[str, str] = {}
        self._started_s = 0.0
        self._dies = ""
        self._daemon: Daemon | None = None
        self._operator: Operator | None = None

    @property
    def process(self) -> Process:
        assert self._daemon is not None, f"server {self.name} was not started"
        return self._daemon.process

    @property
    def operator(self) -> Operator:
        """The operator, over a connection to the process that serves now."""
        assert self._operator is not None, f"server {self.name} was not started"
        return self._operator

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, *, dies: str = "", skew_s: float = 0.0) -> Server:
        """Start it, or start it again, and wait until it serves.

        Args:
            dies: see ``dying_server``; perhaps before it serves.
            skew_s: how far ahead its clock is, see ``skewed``.
        """
        self.launch(dies=dies, skew_s=skew_s)
        return self.serves()

    def launch(self, *, dies: str = "", skew_s: float = 0.0) -> None:
        """Start it without waiting, for example as a standby."""
        self._started_s = time.monotonic()
        self._dies = dies
        script = "dying_server.py" if dies else "skewed.py" if skew_s else ""
        command = (sys.executable, str(HERE / script)) if script else ATOLL
        faults = {"ATOLL_DIES": dies, "ATOLL_SKEW_S": str(skew_s), **self.env}
        arguments = (*self.prefix, *command, "server", "start", *self.arguments())
        self._daemon = self.nursery.launch(arguments, self.name + "-server", faults)

    def serves(self) -> Server:
        """Wait until a launched server serves."""
        assert self._daemon is not None, f"server {self.name} was not started"
        facts = self._daemon.serves()
        self._drop_operator()
        if not facts and self._dies:
            return self
        assert facts, f"{self.name} does not serve:\n{self.process.log[-4000:]}"
        self._operator = Operator.insecure(facts["address"]) if self.insecure else Operator.of(Path(facts["operator"]))
        return self

    def arguments(self) -> tuple[str, ...]:
        """The options of ``atoll server start`` for this server."""
        return ("--data", str(self.data), "--port", str(self.port), *self.options)

    @property
    def deaths(self) -> list[str]:
        """The moments at which it died (``dies``), oldest first."""
        return re.findall(r"^killed itself (.*)$", self.process.log, re.MULTILINE)

    @property
    def workers(self) -> list[psutil.Process]:
        """The newest process of each of its ingest workers."""
        found = re.findall(r"ingest (\S+) started, process (\d+)", self.process.log)
        return [psutil.Process(int(pid)) for pid in dict(found).values()]

    def went_on(self, what: str) -> None:
        """Check that a run continued soon after the start of this process."""
        took_s = time.monotonic() - self._started_s
        assert kept(took_s, RESUMES_WITHIN_S), f"{what} {took_s:.1f} s after the start"

    def kill(self) -> None:
        """Kill it, as a power cut would."""
        self.process.kill()

    def stop(self) -> int:
        """Ask it to stop; return its exit status."""
        return self.process.terminate()

    def died(self) -> None:
        """Wait until it has killed itself (``dies``)."""
        assert self.process.wait() == -signal.SIGKILL

    def close(self) -> None:
        """Close the operator's connection; the nursery ends the process."""
        self._drop_operator()

    def _drop_operator(self) -> None:
        if self._operator is not None:
            self._operator.close()
            self._operator = None


@contextlib.contextmanager
def serving(nursery: Nursery, name: str, *options: str, insecure: bool = False) -> Iterator[Server]:
    """A server that runs while inside."""
    server = Server(nursery, name, *options, insecure=insecure)
    try:
        yield server.start()
    finally:
        server.close()
