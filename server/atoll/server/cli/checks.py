"""The checks of ``atoll doctor``: each returns findings and changes nothing."""

from __future__ import annotations

import importlib
import platform
import shutil
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.server.cli.output import when
from atoll.server.identity import OPERATOR_FILE
from atoll.text.figures import counted, in_bytes
from atoll.text.installing import install_hint

if TYPE_CHECKING:
    from atoll.server.control import AuditChain, PopulationSummary, ServerInfo

MIN_PYTHON = (3, 11)
MODULES = {"grpc": "1.76", "google.protobuf": "6.31.1", "numpy": "1.26", "numba": "0.61"}
"""Module → lowest supported version (as in pyproject.toml)."""
LOW_DISK_BYTES, FULL_DISK_BYTES = 5_000_000_000, 200_000_000
CLOCK_WARN_S, CLOCK_FAIL_S = 5.0, 60.0
EXPIRY_WARN_S = 14 * 86_400.0
PRIVATE_FILES = ("ca/authority.key", "ca/server.pem", OPERATOR_FILE)
CERTIFICATES = ("ca/authority.crt", "ca/server.pem")


class Status(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """The outcome of one check, with the remedy unless it is ok."""

    check: str
    status: Status
    message: str
    remedy: str = ""


def versions() -> Iterator[Finding]:
    """Python and the libraries that the server needs."""
    python = Status.OK if sys.version_info >= MIN_PYTHON else Status.FAIL
    yield Finding("python", python, platform.python_version(), "" if python is Status.OK else "install Python 3.11+")
    for module, lowest in MODULES.items():
        name = module.removeprefix("google.")
        try:
            found = str(importlib.import_module(module).__version__)
        except ImportError as error:
            yield Finding(name, Status.FAIL, f"cannot be loaded: {error}", install_hint("server"))
            continue
        old = _numbers(found) < _numbers(lowest)
        yield Finding(
            name,
            Status.FAIL if old else Status.OK,
            f"{found} (at least {lowest})" if old else found,
            f"pip install '{name}>={lowest}'" if old else "",
        )


def data_directory(data: Path, uid: int) -> Iterator[Finding]:
    """Check that the data directory exists and that only its owner can read its secrets."""
    if not data.is_dir():
        remedy = "`atoll server start --data DIR` makes it; --data or $ATOLL_DATA says where it is"
        yield Finding("data directory", Status.WARN, f"{data} does not exist", remedy)
        return
    facts = data.stat()
    if uid not in {facts.st_uid, 0}:
        remedy = "run as the account that runs the server"
        yield Finding("data directory", Status.FAIL, f"{data} belongs to user {facts.st_uid}, not {uid}", remedy)
    elif facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        remedy = f"chmod 700 {data}"
        mode = stat.S_IMODE(facts.st_mode)
        yield Finding("data directory", Status.FAIL, f"{data} has mode {mode:04o}: others can change it", remedy)
    else:
        yield Finding("data directory", Status.OK, str(data))
    for name in PRIVATE_FILES:
        path = data / name
        if path.exists() and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            mode = stat.S_IMODE(path.stat().st_mode)
            yield Finding(name, Status.FAIL, f"mode {mode:04o}: others may read this key", f"chmod 600 {path}")


def disk(where: str, free_bytes: int, reserve_bytes: int = 0) -> Finding:
    """Check that there is space for models and updates; a server refuses them below its reserve."""
    free = f"{in_bytes(free_bytes)} free"
    remedy = "free some space: models and updates of rounds in progress are kept there"
    if free_bytes < reserve_bytes:
        words = f"{free}, {in_bytes(reserve_bytes)} are kept in reserve: uploads are refused and rounds wait"
        return Finding(f"disk of {where}", Status.FAIL, words, "free some space; see `atoll server storage`")
    if free_bytes < FULL_DISK_BYTES:
        return Finding(f"disk of {where}", Status.FAIL, free, remedy)
    if free_bytes < LOW_DISK_BYTES:
        return Finding(f"disk of {where}", Status.WARN, free, remedy)
    return Finding(f"disk of {where}", Status.OK, free)


def local_disk(data: Path) -> Finding:
    """``disk`` for the data directory or its nearest existing parent."""
    existing = next(path for path in (data.absolute(), *data.absolute().parents) if path.exists())
    return disk(str(existing), shutil.disk_usage(existing).free)


def certificate_files(data: Path, now: float) -> Iterator[Finding]:
    """Check the federation's own certificates."""
    for name in CERTIFICATES:
        path = data / name
        try:
            pem = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            yield Finding(name, Status.FAIL, f"cannot be read: {error.strerror}", "run as the server's account")
            continue
        yield certificate(name, pem, now)


def certificate(name: str, pem: bytes, now: float) -> Finding:
    """Check that a PEM certificate is valid; the finding says for how long."""
    from cryptography import x509  # noqa: PLC0415  # loads when there is a certificate to look at

    try:
        found = x509.load_pem_x509_certificate(pem)
    except (ValueError, x509.InvalidVersion) as error:
        return Finding(name, Status.FAIL, f"not a certificate: {error}", "restore it from a backup")
    begins, ends = found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()
    renewal = "start the server again: it renews its own certificates and operator.json"
    if now >= ends:
        return Finding(name, Status.FAIL, f"expired on {when(ends)}", renewal)
    if now < begins:
        return Finding(name, Status.FAIL, f"not valid before {when(begins)}", "set this machine's clock")
    if ends - now < EXPIRY_WARN_S:
        return Finding(name, Status.WARN, f"expires on {when(ends)}", renewal)
    return Finding(name, Status.OK, f"good until {when(ends)}")


def server(info: ServerInfo, address: str, asked_at: float, answered_at: float) -> Iterator[Finding]:
    """Check a server that has answered: its version, its disk, and its clock (to within half the round trip)."""
    yield Finding("server", Status.OK, f"{address} answers, version {info.version}, {info.connected} connected")
    yield disk("the server", info.disk_free_bytes, info.disk_reserve_bytes)
    ahead_s = info.now - (asked_at + answered_at) / 2
    message = f"the server's is {abs(ahead_s):.1f} s {'ahead' if ahead_s > 0 else 'behind'}"
    remedy = "set the clocks (NTP): certificates are checked by them"
    if abs(ahead_s) >= CLOCK_FAIL_S:
        yield Finding("clock", Status.FAIL, message, remedy)
    elif abs(ahead_s) >= CLOCK_WARN_S:
        yield Finding("clock", Status.WARN, message, remedy)
    else:
        yield Finding("clock", Status.OK, "agrees with the server's")


def ledgers(found: Sequence[PopulationSummary]) -> Iterator[Finding]:
    """Check that every charge of the privacy ledger is in its place and unchanged."""
    for item in found:
        name = f"ledger of {item.population}"
        if item.flaw:
            remedy = "stop the server and restore a backup; compare it with the last export of the ledger"
            yield Finding(name, Status.FAIL, item.flaw, remedy)
        else:
            yield Finding(name, Status.OK, f"{counted(item.charges, 'charge')}, head {item.head}")


def audit_log(found: AuditChain) -> Finding:
    """Check that every entry of the audit log is in its place and unchanged."""
    if found.flaw:
        remedy = "compare it with a backup, and with digests that you noted; see SECURITY.md"
        return Finding("audit log", Status.FAIL, found.flaw, remedy)
    words = f"{counted(found.entries, 'entry', 'entries')}, head {found.head}"
    return Finding("audit log", Status.OK, words)


def ports(host: str, wanted: Sequence[int], *, serving: bool) -> Iterator[Finding]:
    """Check that the ports of a running server are reachable, or that they are free for a server to start."""
    for port in wanted:
        yield _reachable(host, port) if serving else _free(host, port)


def _reachable(host: str, port: int) -> Finding:
    try:
        with socket.create_connection((host, port), timeout=5.0):
            return Finding(f"port {port}", Status.OK, f"{host} accepts connections")
    except OSError as error:
        remedy = "open it in the firewall, or name the server's own with --enrol-port"
        return Finding(f"port {port}", Status.FAIL, f"cannot connect to {host}: {error.strerror or error}", remedy)


def _free(host: str, port: int) -> Finding:
    try:
        with socket.create_server((host, port)):
            return Finding(f"port {port}", Status.OK, "free")
    except OSError as error:
        remedy = "stop what uses it (`ss -ltnp` names it), or start the server with another --port"
        return Finding(f"port {port}", Status.FAIL, f"cannot be used: {error.strerror or error}", remedy)


def _numbers(version: str) -> tuple[int, ...]:
    parts = (part for part in version.split("+", maxsplit=1)[0].split("."))
    return tuple(int(part) for part in parts if part.isdigit())
