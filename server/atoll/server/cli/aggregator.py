"""``atoll aggregator``: serve the participants of one site, and send the server one sum for them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from atoll.server.aggregator.config import DEFAULT_DATA, AggregatorConfig
from atoll.server.cli.errors import Group, local_errors
from atoll.server.cli.given import is_given
from atoll.server.cli.serving import announce, stop_event
from atoll.server.config.config_file import load_settings
from atoll.server.errors import InvalidRequestError
from atoll.server.process.logs import configure_logging
from atoll.server.process.notify import READY, STOPPING, notify
from atoll.settings.numbers import Finite

if TYPE_CHECKING:
    from atoll.server.aggregator.daemon import AggregatorAddresses

log = logging.getLogger(__name__)


@click.group(cls=Group)
def aggregator() -> None:
    """Serve the participants of one site, and send the server one exact sum for them."""


@aggregator.command()
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="ATOLL_AGGREGATOR_CONFIG",
    help="TOML file with these settings and more (docs/aggregators.md); options here take precedence.",
)
@click.option(
    "--token",
    default="",
    envvar="ATOLL_AGGREGATOR_TOKEN",
    help="Join token of kind aggregator, or @FILE with it, for the first start; see `atoll token new --kind "
    "aggregator`.",
)
@click.option(
    "--upstream", metavar="HOST:PORT", help="The server's main port.  [default: the address given at enrolment]"
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DATA,
    envvar="ATOLL_AGGREGATOR_DATA",
    show_default=True,
    help="Directory of credential, models and uploads; created at the first start.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=int, default=7410, show_default=True, help="Main port; 0 picks a free one.")
@click.option("--enrol-port", type=int, help="Enrolment port.  [default: main port + 1]")
@click.option("--advertise", help="Host name that participants connect to.  [default: the first in its join token]")
@click.option(
    "--drain-s",
    type=Finite(0),
    default=5.0,
    show_default=True,
    help="Seconds that open calls get to end when stopping.",
)
@click.option(
    "--keep-models", type=int, default=8, show_default=True, help="Number of models kept on disk for participants."
)
@click.option("--metrics/--no-metrics", default=True, show_default=True, help="Serve metrics and health over HTTP.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Address of the metrics port.")
@click.option("--metrics-port", type=int, help="Port of metrics and health.  [default: main port + 3]")
@click.option(
    "--log-level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning", "error"])
)
@click.option("--json-log", is_flag=True, help="Log one JSON object per line.")
@click.option("--ready-fd", type=int, help="Write one JSON line with the addresses to this descriptor when serving.")
def start(
    *, config_file: Path | None, token: str, log_level: str, json_log: bool, ready_fd: int | None, **settings: Any
) -> None:
    """Serve until interrupted. The first start enrols; all connections to the server are outgoing."""
    given = {name: value for name, value in settings.items() if is_given(name)}
    with local_errors():
        config = load_settings(AggregatorConfig, given, config_file)
        configure_logging(log_level, as_json=json_log)
        log.info("starting an aggregator on the directory %s", config.data)
        asyncio.run(_serve(config, _read_token(token), ready_fd))


def _read_token(text: str) -> str:
    """Read a join token from the command line: the token itself, or ``@FILE`` with it.

    Raises:
        InvalidRequestError: if the file cannot be read, or does not contain exactly one token.
    """
    if not text.startswith("@"):
        return text
    file, remedy = text[1:], "name the file that `atoll token new --kind aggregator --serves HOST -o FILE` wrote"
    try:
        tokens = Path(file).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError("aggregator.token", f"cannot read --token {text}: {error}", remedy) from None
    if len(tokens) != 1:
        raise InvalidRequestError("aggregator.token", f"--token {text}: {file} has {len(tokens)} join tokens", remedy)
    return tokens[0]


async def _serve(config: AggregatorConfig, token: str, ready_fd: int | None) -> None:
    from atoll.server.aggregator.daemon import AggregatorDaemon  # noqa: PLC0415  # takes a second or more to import

    stopping = stop_event()
    daemon = AggregatorDaemon(config, token)
    addresses = await daemon.start()
    _announce(config, addresses, ready_fd)
    notify(READY)
    waiting = [asyncio.create_task(stopping.wait()), asyncio.create_task(daemon.ended())]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    notify(STOPPING)
    log.info("stopping")
    await daemon.stop()
    waiting[0].cancel()
    if not stopping.is_set():
        await waiting[1]
    waiting[1].cancel()


def _announce(config: AggregatorConfig, addresses: AggregatorAddresses, ready_fd: int | None) -> None:
    facts = {
        "name": addresses.name,
        "address": addresses.main,
        "enrolment": addresses.enrolment,
        "upstream": addresses.upstream,
        "metrics": addresses.metrics or None,
        "data": str(config.data),
    }
    where = f"{addresses.main} (enrolment on {addresses.enrolment})"
    announce(facts, f"{addresses.name} serves on {where} for the server {addresses.upstream}", ready_fd)
