"""Measures how long faults last, with real processes: ``python -m tests.system.measure [NAME ...]``.

These are the figures in ``docs/reliability.md``. They depend on the machine, so no test checks them.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.patience import WAIT_S
from tests.system.clients import Client, Crew, crew
from tests.system.operators import job_toml, seconds_since
from tests.system.processes import Nursery, nursery
from tests.system.proxy import Proxy
from tests.system.reference import MODEL
from tests.system.servers import Server, serving

OUTAGES_S = (1.0, 4.0, 15.0, 45.0)
CLIENTS = 8
LONG_ROUNDS = 2000
LONG_S = 1500.0


def main(names: list[str]) -> None:
    """Take the named measurements, or all."""
    for name, measure in MEASURES.items():
        if not names or name in names:
            with tempfile.TemporaryDirectory(prefix="atoll-measure-") as folder, nursery(Path(folder)) as processes:
                measure(processes)


def tell(what: str, seconds: float) -> None:
    """Print one figure."""
    sys.stdout.write(f"{what}: {seconds:.1f} s\n")
    sys.stdout.flush()


def outages(processes: Nursery) -> None:
    """From a killed server's return to the last participant's return, and to the release of the open round."""
    for outage_s in OUTAGES_S:
        with serving(processes, f"outage-{outage_s:g}") as server, hired(server, processes) as hands:
            held = hands.start("Held", index=0, rounds=[0])
            others = [hands.start("Steady", index=index) for index in range(1, CLIENTS)]
            run = submitted(server, CLIENTS, rounds=1)
            held.wait("held")
            for client in others:
                client.wait("reported")
            server.kill()
            threading.Event().wait(outage_s)
            server.start()
            since = time.monotonic()
            held.go()
            for client in (held, *others):
                client.wait("connected", count=2, timeout_s=WAIT_S)
            tell(
                f"server away for {outage_s:g} s and its start: {CLIENTS} participants back after", seconds_since(since)
            )
            server.operator.finished(run)
            tell("    the open round released after", seconds_since(since))


def lost_clients(processes: Nursery) -> None:
    """From a participant's end to the release of a round in which all others have reported."""
    for what, lose in (("killed", kill), ("its network dark", darken)):
        with (
            serving(processes, what.split()[-1]) as server,
            hired(server, processes) as hands,
            Proxy(server.address) as network,
        ):
            lost = hands.start("Held", "--server", network.address, index=0)
            others = [hands.start("Steady", index=index) for index in range(1, 4)]
            run = submitted(server, 4, rounds=1, quorum=3)
            lost.wait("held")
            for client in others:
                client.wait("reported")
            lose(lost, network)
            since = time.monotonic()
            server.operator.finished(run, timeout_s=WAIT_S)
            tell(f"participant {what} in training: the round released without it after", seconds_since(since))


def long_log(processes: Nursery) -> None:
    """From the start of a server until it serves, with an unfinished run of many rounds."""
    with serving(processes, "long") as server, hired(server, processes) as hands:
        hands.start("Steady", index=0)
        run = submitted(server, 1, rounds=LONG_ROUNDS + 1000, quorum=1)
        server.operator.until(run, lambda seen: seen.summary.rounds_released >= LONG_ROUNDS, "long", LONG_S)
        for _ in range(3):
            server.kill()
            since = time.monotonic()
            server.start()
            tell(f"killed after {LONG_ROUNDS} rounds: serves after", seconds_since(since))


def kill(client: Client, _: Proxy) -> None:
    """Kill it as ``kill -9`` does."""
    client.process.kill()


def darken(_: Client, network: Proxy) -> None:
    """Cut the connection like a pulled cable."""
    network.darken()


def hired(server: Server, processes: Nursery) -> contextlib.AbstractContextManager[Crew]:
    """Clients of a server, one by one."""
    return crew(server, processes.folder / f"crew-{server.name}")


def submitted(server: Server, size: int, *, rounds: int, quorum: int | None = None) -> str:
    """A run for this many participants."""
    cohort = {"size": size, "quorum": quorum or size, "min_available": size}
    toml = job_toml(job={"name": "measured", "rounds": rounds}, cohort=cohort, straggler={"report_window_s": 600})
    return server.operator.submit(toml, MODEL)


MEASURES: dict[str, Callable[[Nursery], None]] = {
    "outages": outages,
    "lost-clients": lost_clients,
    "long-log": long_log,
}

if __name__ == "__main__":
    main(sys.argv[1:])
