"""``atoll server``: run the daemon."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atoll.server.cli.backup import backup, restore, standby
from atoll.server.cli.errors import Group, local_errors
from atoll.server.cli.given import is_given
from atoll.server.cli.migrate import migrate
from atoll.server.cli.server_audit import audit
from atoll.server.cli.server_log import log as log_command
from atoll.server.cli.serving import announce, stop_event
from atoll.server.cli.storage import prune, storage
from atoll.server.config import DEFAULT_DATA
from atoll.server.config.config import ServerConfig
from atoll.server.config.config_file import load_config
from atoll.server.process.logs import configure_logging
from atoll.server.process.notify import READY, STOPPING, notify
from atoll.settings.numbers import Finite
from atoll.wire.pacing import LONGEST_PING_S, LONGEST_RETRY_S, PING_S

if TYPE_CHECKING:
    from atoll.server.process.ports import Addresses
    from atoll.server.process.server import Daemon

log = logging.getLogger(__name__)


@click.group(cls=Group)
def server() -> None:
    """Run the federation's server."""


server.add_command(backup)
server.add_command(restore)
server.add_command(migrate)
server.add_command(standby)
server.add_command(storage)
server.add_command(prune)
server.add_command(log_command)
server.add_command(audit)


@server.command()
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="ATOLL_SERVER_CONFIG",
    help="TOML file with these settings and more (docs/server-reference.md); options here take precedence.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DATA,
    envvar="ATOLL_DATA",
    show_default=True,
    help="Directory of database, models, spool and certificate authority; created at the first start.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=int, default=7400, show_default=True, help="Main port; 0 picks a free one.")
@click.option("--enrol-port", type=int, help="Enrolment port.  [default: main port + 1]")
@click.option("--transfer-port", type=int, help="Port shared by several workers.  [default: main port + 2]")
@click.option("--advertise", help="Host name that participants connect to.  [default: --host]")
@click.option(
    "--peer-host",
    help="Name or address at which other servers reach this one.  [default: --host, or as the database sees it]",
)
@click.option(
    "--workers", type=int, default=1, show_default=True, help="Number of processes that receive and fold updates."
)
@click.option("--insecure", is_flag=True, help="No TLS and no certificates; on loopback only.")
@click.option("--evaluator", "evaluators", multiple=True, metavar="NAME=MODULE:FUNCTION", help="Install an evaluator.")
@click.option(
    "--certificate-lifetime-s",
    type=Finite(0, min_open=True),
    default=86_400.0,
    show_default=True,
    help="Lifetime of client certificates, in seconds.",
)
@click.option(
    "--silence-s",
    type=Finite(0),
    default=3 * LONGEST_RETRY_S,
    show_default=True,
    help="Seconds after which a disconnected participant counts as gone.",
)
@click.option("--silo-silence-s", type=Finite(0), default=60.0, show_default=True, help="The same for silos.")
@click.option(
    "--ping-s",
    type=Finite(PING_S, LONGEST_PING_S),
    default=PING_S,
    show_default=True,
    help="Interval of keepalive pings to participants.",
)
@click.option(
    "--drain-s",
    type=Finite(0),
    default=5.0,
    show_default=True,
    help="Seconds that open calls get to end when stopping.",
)
@click.option(
    "--keep-models",
    type=int,
    default=3,
    show_default=True,
    help="Number of released models kept, in addition to the first.",
)
@click.option("--metrics/--no-metrics", default=True, show_default=True, help="Serve metrics and health over HTTP.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Address of the metrics port.")
@click.option("--metrics-port", type=int, help="Port of metrics and health.  [default: main port + 3]")
@click.option(
    "--log-level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning", "error"])
)
@click.option("--json-log", is_flag=True, help="Log one JSON object per line.")
@click.option("--ready-fd", type=int, help="Write one JSON line with the addresses to this descriptor when serving.")
def start(*, config_file: Path | None, log_level: str, json_log: bool, ready_fd: int | None, **settings: Any) -> None:
    """Serve until interrupted; on an existing directory, resume all runs."""
    given = {name: value for name, value in settings.items() if is_given(name)}
    with local_errors():
        config = load_config(given, config_file)
        configure_logging(log_level, as_json=json_log)
        log.info("starting a server on the data directory %s", config.data)
        asyncio.run(_serve(config, ready_fd))


async def _serve(config: ServerConfig, ready_fd: int | None) -> None:
    from atoll.server.process.server import Daemon  # noqa: PLC0415  # takes a second or more, so it is announced first

    stopping = stop_event()
    returns = False
    while not stopping.is_set():
        daemon = Daemon(config, returns=returns)
        addresses = await _start(daemon, stopping)
        if addresses is None:
            return
        _announce(config, addresses, ready_fd)
        ready_fd = None
        notify(READY)
        await _first_of(stopping, daemon.over)
        if stopping.is_set():
            notify(STOPPING)
            log.info("stopping")
        else:
            log.warning("%s; this server stops, and stands by", daemon.why_over)
        await daemon.stop()
        returns = True


async def _start(daemon: Daemon, stopping: asyncio.Event) -> Addresses | None:
    """Start a server; None if it was stopped while it stood by."""
    from atoll.server.stores.standby import StandbyEndedError  # noqa: PLC0415  # as below

    def stop_waiting(_: object) -> None:
        daemon.stop_waiting()

    signalled = asyncio.create_task(stopping.wait())
    signalled.add_done_callback(stop_waiting)
    try:
        return await daemon.start()
    except StandbyEndedError:
        return None
    finally:
        signalled.remove_done_callback(stop_waiting)
        signalled.cancel()


async def _first_of(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def _announce(config: ServerConfig, addresses: Addresses, ready_fd: int | None) -> None:
    facts = {
        "address": addresses.main,
        "enrolment": addresses.enrolment,
        "transfer": addresses.transfer or addresses.main,
        "metrics": addresses.metrics or None,
        "sign_in": addresses.sign_in or None,
        "operator": str(addresses.operator) if addresses.operator else None,
        "data": str(config.data),
    }
    announce(facts, f"serving on {addresses.main} (enrolment on {addresses.enrolment})", ready_fd)
