"""Baselines of the machine without the platform: plain gRPC streams, plain writes with fsync, plain loopback.

Each is measured in the same run as the figure that it is compared with, so that a busy neighbour slows both.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from atoll.server.identity import Authority
from benchmarks.baseline_peer import MESSAGE_BYTES
from benchmarks.sampling import cpu_s_of
from benchmarks.starting import Piped, piped

_PEER = [sys.executable, "-m", "benchmarks.baseline_peer"]


@dataclass(frozen=True)
class Streams:
    """Seconds to move a model to every client at the same time, and back, with the processor time."""

    down_s: float
    up_s: float
    cpu_s: float

    @property
    def total_s(self) -> float:
        """Both ways, one after the other, as a round does."""
        return self.down_s + self.up_s

    @classmethod
    def mean(cls, measured: Sequence[Streams]) -> Streams:
        """The mean of several measured."""
        return cls(*(statistics.mean(getattr(one, name) for one in measured) for name in ("down_s", "up_s", "cpu_s")))


def streams(size: int, clients: int, *, tls: bool = False, repeats: int = 3) -> Streams:
    """Plain grpcio: ``size`` bytes to each of ``clients`` processes, then back, all at once; the median."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        certificate, ca = _certificates(Path(folder)) if tls else ([], [])
        server = stack.enter_context(_peer(["serve", str(2 * clients), str(size), *certificate]))
        address = f"127.0.0.1:{_line(server)}"
        peers = [stack.enter_context(_peer(["client", address, str(size), *ca])) for _ in range(clients)]
        for peer in peers:
            _line(peer)
        processes = [server.pid, *(peer.pid for peer in peers)]
        spent = cpu_s_of(processes)
        measured = [(_all(peers, "down"), _all(peers, "up")) for _ in range(repeats)]
        cpu_s = (cpu_s_of(processes) - spent) / repeats
    down_s, up_s = (statistics.median(seconds) for seconds in zip(*measured, strict=True))
    return Streams(down_s, up_s, cpu_s)


@dataclass(frozen=True)
class Writes:
    """Seconds to write files in turn, each fsynced: first new files, then the same files overwritten."""

    new_s: float
    over_s: float


@dataclass(frozen=True)
class Plain:
    """The minimum cost of a round: the streams, and writing every client's upload."""

    streams: Streams
    writes: Writes

    @property
    def round_s(self) -> float:
        """Both ways through gRPC, then every upload into a new file with fsync."""
        return self.streams.total_s + self.writes.new_s

    @property
    def over_s(self) -> float:
        """The same with uploads written over existing files."""
        return self.streams.total_s + self.writes.over_s

    @classmethod
    def mean(cls, measured: Sequence[Plain]) -> Plain:
        """The mean of several measured."""
        writes = [one.writes for one in measured]
        return cls(
            Streams.mean([one.streams for one in measured]),
            Writes(*(statistics.mean(getattr(one, name) for one in writes) for name in ("new_s", "over_s"))),
        )


def plain(size: int, clients: int, *, tls: bool = False, repeats: int = 3) -> Plain:
    """Measure all baselines now."""
    return Plain(streams(size, clients, tls=tls, repeats=repeats), write_and_fsync(size, clients, repeats=repeats))


def write_and_fsync(size: int, files: int, folder: Path | None = None, repeats: int = 3) -> Writes:
    """Write ``files`` files of ``size`` bytes, then overwrite them; the median of each."""
    measured = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            measured.append([_write_all(Path(place), size, files) for _ in range(2)])
    new_s, over_s = (statistics.median(seconds) for seconds in zip(*measured, strict=True))
    return Writes(new_s, over_s)


def _write_all(place: Path, size: int, files: int) -> float:
    started = time.perf_counter()
    for number in range(files):
        path = place / str(number)
        path.touch()
        _write(path, size)
    return time.perf_counter() - started


def _write(path: Path, size: int) -> None:
    """Fill a file without truncating it first."""
    piece = os.urandom(MESSAGE_BYTES)
    with path.open("r+b", buffering=0) as file:
        for start in range(0, size, MESSAGE_BYTES):
            file.write(piece[: min(MESSAGE_BYTES, size - start)])
        os.fsync(file.fileno())


def _all(peers: Sequence[Piped], what: str) -> float:
    started = time.perf_counter()
    for peer in peers:
        assert peer.stdin is not None
        peer.stdin.write(what + "\n")
        peer.stdin.flush()
    for peer in peers:
        _line(peer)
    return time.perf_counter() - started


def _peer(arguments: Sequence[str]) -> contextlib.AbstractContextManager[Piped]:
    return piped([*_PEER, *arguments])


def _line(peer: Piped) -> str:
    assert peer.stdout is not None
    line = peer.stdout.readline().strip()
    if not line:
        raise RuntimeError(f"a plain gRPC peer ended with status {peer.wait()}")
    return line


def _certificates(folder: Path) -> tuple[list[str], list[str]]:
    """Arguments with the server's certificate and key, and the client's CA."""
    authority = Authority.open(folder / "ca", now=time.time())
    pair = authority.server_key_pair(("127.0.0.1",), now=time.time())
    certificate, key, ca = folder / "server.pem", folder / "server.key", folder / "ca.pem"
    certificate.write_bytes(pair.certificate_pem)
    key.write_bytes(pair.key_pem)
    ca.write_bytes(authority.certificate_pem)
    return [str(certificate), str(key)], [str(ca)]
