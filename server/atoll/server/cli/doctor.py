"""``atoll doctor``: checks that a server can run here or is reachable."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from atoll.operator import Operator, Timeouts
from atoll.operator.connecting import DEFAULT_ADDRESS, Target, find_target
from atoll.operator.errors import NotPermittedError, OperatorError, UnreachableError
from atoll.server.cli import check_bucket, check_database, checks
from atoll.server.cli.check_database import schema
from atoll.server.cli.checks import Finding, Status
from atoll.server.cli.connection import credentials_option, data_option, server_option
from atoll.server.cli.errors import Command, local_errors
from atoll.server.cli.given import is_given
from atoll.server.cli.offline import opened
from atoll.server.cli.output import json_option, print_json, print_table
from atoll.server.identity import OperatorCredential
from atoll.text.figures import counted
from atoll.wire.loopback import is_loopback

if TYPE_CHECKING:
    from atoll.server.config.config import ServerConfig

_STYLES = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}


@click.command(cls=Command)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="ATOLL_SERVER_CONFIG",
    help="The server's TOML file: also check the database, bucket and ports that a first start would use.",
)
@data_option
@server_option
@credentials_option
@click.option("--enrol-port", type=click.IntRange(1, 65535), help="Default: the main port + 1.")
@click.option("--insecure", is_flag=True, help="The server on this machine was started with --insecure.")
@json_option
def doctor(
    *,
    config_file: Path | None,
    data: Path,
    server: str | None,
    credentials: Path | None,
    enrol_port: int | None,
    insecure: bool,
    json_output: bool,
) -> None:
    """Check ports, certificates, disk, clock, ledgers, versions and permissions; exit code 1 if a check fails."""
    config = _read(config_file, data) if config_file is not None else None
    if config is not None:
        data, insecure = config.data, insecure or config.insecure
        enrol_port = enrol_port or config.enrol_port
    findings = [*checks.versions(), *checks.data_directory(data, os.getuid()), checks.local_disk(data)]
    findings += checks.certificate_files(data, time.time())
    findings += [*_database(data, config), *_bucket(data, config)]
    try:
        target = find_target(server, credentials, data, insecure=insecure)
    except OperatorError as error:
        findings.append(Finding("credential", Status.WARN, error.message, error.remedy))
        target = None
    address = DEFAULT_ADDRESS if config is None else f"{config.host}:{config.port}"
    findings += _connection(target, server or address, enrol_port)
    if not any(finding.check == "server" and finding.status is Status.OK for finding in findings):
        findings += _ledgers_of(data)
    failed = sum(finding.status is Status.FAIL for finding in findings)
    if json_output:
        print_json(findings)
    else:
        print_table(("check", "", "finding", "what to do"), map(_row, findings), "")
    if failed:
        raise OperatorError(f"{failed} of {counted(len(findings), 'check')} failed")


def _read(file: Path, data: Path) -> ServerConfig:
    from atoll.server.config.config_file import load_config  # noqa: PLC0415 - as in _ledgers_of

    with local_errors():
        return load_config({"data": data} if is_given("data") else {}, file)


def _database(data: Path, config: ServerConfig | None) -> list[Finding]:
    from atoll.server.stores import dialects  # noqa: PLC0415 - as in _ledgers_of

    named = config.storage.database if config is not None else None
    wanted = dialects.parse_url(named) if named is not None else None
    found = list(check_database.database_server(data, wanted))
    failed = any(one.status is Status.FAIL for one in found)
    return found if failed else [*found, *schema(data, wanted)]


def _bucket(data: Path, config: ServerConfig | None) -> Iterator[Finding]:
    return check_bucket.bucket(data, config.storage.bucket if config is not None else None)


def _connection(target: Target | None, fallback: str, enrol_port: int | None) -> Iterator[Finding]:
    """Check a server by its answers or, if none answers on this machine, whether its ports are free."""
    host, _, port = (target.address if target is not None else fallback).rpartition(":")
    wanted = (int(port), enrol_port or int(port) + 1)
    if target is None:
        yield from checks.ports(host, wanted, serving=False)
        return
    if isinstance(target.credential, OperatorCredential):
        yield checks.certificate("operator credential", target.credential.certificate.encode(), time.time())
    try:
        with Operator(target, Timeouts()) as client:
            asked_at = time.time()
            info = client.health()
            yield from checks.server(info, target.address, asked_at, time.time())
            yield from checks.ledgers(client.populations(verify=True))
            yield _audit_log(client)
            yield from checks.ports(host, wanted, serving=True)
    except UnreachableError as error:
        if not is_loopback(host):
            yield Finding("server", Status.FAIL, error.message, "start it there, or check firewall and DNS")
            return
        yield Finding("server", Status.WARN, error.message, "start it: atoll server start")
        yield from checks.ports(host, wanted, serving=False)
    except OperatorError as error:
        yield Finding("server", Status.FAIL, error.message, error.remedy)


def _audit_log(client: Operator) -> Finding:
    try:
        return checks.audit_log(client.audit_chain())
    except NotPermittedError:
        return Finding("audit log", Status.OK, "not checked: this needs a role in all projects that may read it")


def _ledgers_of(data: Path) -> Iterator[Finding]:
    """Check the ledgers in the database of a server that does not answer."""
    from atoll.server.stores import database_place  # noqa: PLC0415 - imports SQLAlchemy: half a second

    try:
        with local_errors():
            place = database_place.find(data)
        if place is None:
            return
        with opened(data) as source:
            yield from checks.ledgers(source.populations(verify=True))
    except OperatorError as error:
        yield Finding("ledgers", Status.WARN, error.message, error.remedy)


def _row(finding: Finding) -> tuple[object, ...]:
    return (
        finding.check,
        Text(finding.status.value, style=_STYLES[finding.status]),
        finding.message,
        finding.remedy,
    )
