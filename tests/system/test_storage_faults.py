"""Disks that are full, cannot be written, lose data or return wrong data: a clear error or a resume, never a wrong sum.

Each run here ends with the bits of an undisturbed one, or fails and says why. No caller is shown a traceback, and no
participant a path of the server. Most updates have several chunks, so that spool and blobs have real files. The first
fault of each kind is always played; ``--every-fault`` plays all.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.system.clients import Client
from tests.system.conftest import Hire
from tests.system.disks import MIB, Faults, SmallDisk, compiled, compiler, namespaces
from tests.system.operators import Sight
from tests.system.processes import ATOLL, Nursery
from tests.system.reference import JOB, KILLED_JOB, KILLED_MODEL, MODEL, SIZE
from tests.system.servers import Server

pytestmark = pytest.mark.system

needs_compiler = pytest.mark.skipif(not compiler(), reason="no C compiler: a disk's calls cannot be made to fail")
needs_mounts = pytest.mark.skipif(not namespaces(), reason="this machine does not allow mounts in a new namespace")
HELD_ROUND = 1


def some_of(names: Iterable[str], *always: str) -> list[ParameterSet]:
    """Parameters of which only these are always played."""
    return [pytest.param(name, marks=() if name in always else pytest.mark.every_fault) for name in names]


@pytest.fixture
def server(processes: Nursery) -> Iterator[Server]:
    """A server that is not started yet; its storage settings are small."""
    processes.folder.mkdir(parents=True, exist_ok=True)
    settings = processes.folder / "server.toml"
    settings.write_text("[storage]\nreserve_mib = 8\n")
    made = Server(processes, "faulty", "--config", str(settings), "--silence-s", "30", insecure=True)
    yield made
    made.close()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes a disk's calls fail."""
    return compiled(tmp_path_factory.mktemp("library"))


def says(part: str) -> Callable[[Sight], bool]:
    """Whether the run reports this to its operator."""
    return lambda seen: part in seen.summary.reason


def held_in_a_round(server: Server, hire: Hire) -> tuple[str, list[Client]]:
    """A run whose members all wait to send their finished updates; returns its id and the members."""
    crew = hire(server)
    clients = [
        crew.start("Held", "--log-level", "warning", index=index, rounds=[HELD_ROUND], obey=False)
        for index in range(SIZE)
    ]
    run = server.operator.submit(KILLED_JOB, KILLED_MODEL)
    for client in clients:
        client.wait("held", round=HELD_ROUND)
    return run, clients


def assert_no_internals_shown(server: Server, clients: list[Client]) -> None:
    """No traceback for the operator, no path for the participants."""
    assert not any("Traceback" in line for line in server.process.lines)
    assert "Traceback" not in server.process.log
    for client in clients:
        assert str(server.data.parent) not in client.process.log
        assert "Traceback" not in client.process.log


@needs_mounts
class TestFull:
    def test_a_full_disk_is_waited_for_and_seen(self, server: Server, hire: Hire, killed_undisturbed: bytes) -> None:
        """First only the reserve is left (uploads refused), then nothing (no database writes), then there is room."""
        disk = SmallDisk(server, 160)
        server.start()
        run, clients = held_in_a_round(server, hire)
        disk.fill(leave_bytes=4 * MIB)
        clients[0].go()
        server.process.wait_for_log("no room for updates")
        server.operator.until(run, says("uploads are refused: the server's disk has"), "refusing uploads")
        disk.fill(leave_bytes=0)
        for client in clients[1:]:
            client.go()
        with pytest.raises(Exception, match="full"):
            server.operator.pause(run)
        server.process.wait_for_log("pause_requested not stored")
        server.operator.until(run, says("uploads are refused: the server's disk has 0.0 MiB free"), "refusing uploads")
        disk.free()
        server.operator.finished(run)
        assert server.operator.model(run) == killed_undisturbed
        assert "no room for updates: the server's disk has" in clients[0].process.log
        assert_no_internals_shown(server, clients)

    def test_rounds_that_cannot_begin_or_be_stored_wait(
        self, server: Server, hire: Hire, reference_model: bytes
    ) -> None:
        """The disk fills up to the last byte when only the run's next step is pending."""
        disk = SmallDisk(server, 40)
        server.start()
        crew = hire(server)
        run = server.operator.submit(JOB, MODEL)
        disk.fill(leave_bytes=0)
        clients = [crew.start("Steady", "--log-level", "warning", index=index) for index in range(SIZE)]
        server.operator.until(run, says("the server's disk has 0.0 MiB free"), "waiting")
        disk.free()
        server.operator.finished(run)
        assert server.operator.model(run) == reference_model
        assert_no_internals_shown(server, clients)

    def test_files_kept_to_be_written_over_do_not_count(
        self, server: Server, hire: Hire, reference_model: bytes
    ) -> None:
        """They would fill the disk up to its reserve for ten minutes."""
        disk = SmallDisk(server, 40)
        server.start()
        crew = hire(server)
        run = server.operator.submit(JOB, MODEL)
        kept = disk.inside / "spool" / ".free" / "kept"
        kept.parent.mkdir()
        disk.fill(leave_bytes=4 * MIB, path=kept)
        clients = [crew.start("Steady", "--log-level", "warning", index=index) for index in range(SIZE)]
        server.operator.finished(run)
        assert not kept.exists()
        assert server.operator.model(run) == reference_model
        assert "no room" not in server.process.log
        assert_no_internals_shown(server, clients)

    def test_a_model_that_does_not_fit_is_refused_with_what_it_needs(self, server: Server) -> None:
        disk = SmallDisk(server, 40)
        server.start()
        disk.fill(leave_bytes=4 * MIB)
        with pytest.raises(Exception, match=r"no room for this model: it needs 0.0 MiB, the server's disk has .* free"):
            server.operator.submit(JOB, MODEL)

    def test_a_new_server_needs_its_reserve(self, server: Server) -> None:
        SmallDisk(server, 4)
        assert_says(server, r"no room for a new server: the server's disk has .* and keeps 8.0 MiB in reserve")

    def test_a_read_only_disk_is_named(self, server: Server) -> None:
        SmallDisk(server, 40, read_only=True)
        assert_says(server, "Read-only file system")


def assert_says(server: Server, expected: str) -> None:
    """It does not start, gives the reason on a line or two, and shows no traceback."""
    process = server.nursery.start((*ATOLL, "server", "start", *server.arguments()), "refused", env=server.env)
    code = process.wait()
    said = "\n".join((*process.lines, process.log))
    assert code == 1, said
    assert re.search(expected, said), said
    assert "Traceback" not in said


Fault = tuple[str, int, str]
FAILING: dict[str, tuple[str, *tuple[Fault, ...]]] = {
    "an update cannot be synced": ("the update could not be made durable", ("sync", errno.EIO, "/spool/")),
    "an update cannot be written": ("the chunk could not be stored", ("write", errno.EIO, "/spool/")),
    "the database cannot be synced": ("disk I/O error", ("sync", errno.EIO, "atoll.sqlite3")),
    "the database cannot be written": ("disk I/O error", ("write", errno.EIO, "atoll.sqlite3")),
    "nothing can be synced": ("the update could not be made durable", ("sync", errno.EIO, "/faulty/")),
    "a model cannot be synced": ("a blob cannot be read or written", ("sync", errno.EIO, "/blobs/")),
    "everything is read-only": (
        "Read-only file system",
        ("write", errno.EROFS, "/faulty/"),
        ("open", errno.EROFS, "/faulty/"),
    ),
}
"""The failing operation → the server's log line about it, and the failing calls."""


@needs_compiler
@pytest.mark.parametrize("fault", some_of(FAILING, "nothing can be synced"))
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.every_fault), "2"])
def test_a_disk_that_fails_for_a_while_costs_time_and_nothing_else(
    server: Server, hire: Hire, library: Path, tmp_path: Path, killed_undisturbed: bytes, fault: str, workers: str
) -> None:
    server.options = (*server.options, "--workers", workers)
    faults = Faults(server, library, tmp_path / "faults")
    server.start()
    run, clients = held_in_a_round(server, hire)
    faults.begin(*FAILING[fault][1:])
    for client in clients:
        client.go()
    server.process.wait_for_log(FAILING[fault][0])
    faults.end()
    server.operator.finished(run)
    assert server.operator.model(run) == killed_undisturbed
    assert_no_internals_shown(server, clients)


def flip_bits(path: Path, seed: int, bits: int = 64) -> None:
    """Change this many bits, at places determined by the seed."""
    content, rng = bytearray(path.read_bytes()), random.Random(seed)
    for _ in range(bits):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(path: Path, seed: int) -> None:
    """Truncate the file."""
    os.truncate(path, random.Random(seed).randrange(path.stat().st_size))


Damage = Callable[[Path, int], None]
DAMAGES: dict[str, Damage] = {"flipped": flip_bits, "cut short": cut, "gone": lambda path, _seed: path.unlink()}


PAYLOADS, INDEXES, RECORDS = "*/*.data", "*/*.index", "*.committed"
"""Files of one upload, in its participant's folder."""


def damage(paths: Iterable[Path], kind: str) -> None:
    """Damage these files; there must be at least one."""
    found = sorted(paths)
    assert found
    for seed, path in enumerate(found):
        DAMAGES[kind](path, seed)


def blobs_of_the_newest_model(server: Server) -> dict[str, Path]:
    """Return the files of model and optimiser states, from the database of a stopped server."""
    with contextlib.closing(sqlite3.connect(server.data / "atoll.sqlite3")) as database:
        query = "SELECT blob, optimiser_blobs FROM models ORDER BY version DESC LIMIT 1"
        model, states = database.execute(query).fetchone()
    named = {"model": model, **json.loads(states)}
    return {what: server.data / "blobs" / name[:2] / name for what, name in named.items()}


class TestDamage:
    """Files of a stopped server are changed on disk, one kind of file at a time."""

    @pytest.mark.parametrize("kind", some_of(DAMAGES, "flipped"))
    @pytest.mark.parametrize("files", [PAYLOADS, RECORDS])
    def test_a_damaged_update_is_left_out_and_its_round_tried_again(
        self, server: Server, hire: Hire, killed_undisturbed: bytes, files: str, kind: str
    ) -> None:
        run, clients = self._all_but_one_reported(server, hire)
        damage((server.data / "spool" / run / f"{HELD_ROUND}.0").glob(f"*/{files}"), kind)
        server.start()
        clients[-1].go()  # it still works at the attempt that is over
        for client in clients:
            client.wait("held", round=HELD_ROUND, attempt=1)
            client.go()
        server.operator.finished(run)
        assert server.operator.model(run) == killed_undisturbed
        assert_no_internals_shown(server, clients)

    @pytest.mark.parametrize("kind", some_of(DAMAGES, "flipped"))
    def test_what_only_served_to_receive_an_update_is_not_missed(
        self, server: Server, hire: Hire, killed_undisturbed: bytes, kind: str
    ) -> None:
        """An index lists received chunks; an acknowledged update has its own records."""
        run, clients = self._all_but_one_reported(server, hire)
        damage((server.data / "spool" / run / f"{HELD_ROUND}.0").glob(f"*/{INDEXES}"), kind)
        server.start()
        clients[-1].go()
        server.operator.finished(run)
        assert server.operator.model(run) == killed_undisturbed
        assert {seen.attempt for seen in server.operator.rounds(run)} == {0}
        assert_no_internals_shown(server, clients)

    @pytest.mark.parametrize("kind", some_of(DAMAGES, "flipped"))
    @pytest.mark.parametrize("blob", some_of(["model", "momentum"], "momentum"))
    def test_a_damaged_model_fails_the_run_and_says_so(self, server: Server, hire: Hire, blob: str, kind: str) -> None:
        run, clients = held_in_a_round(server.start(), hire)
        server.kill()
        damage([blobs_of_the_newest_model(server)[blob]], kind)
        server.start()
        for client in clients:
            client.go()
        ended = server.operator.ended(run)
        assert "failed" in str(ended.reason) or "blob" in ended.reason, ended
        assert ended.rounds_released == HELD_ROUND
        assert_no_internals_shown(server, clients)

    @staticmethod
    def _all_but_one_reported(server: Server, hire: Hire) -> tuple[str, list[Client]]:
        """A run whose server was killed when only the last member of a round had not reported; its id, the members."""
        run, clients = held_in_a_round(server.start(), hire)
        for client in clients[:-1]:
            client.go()
            client.wait("reported", round=HELD_ROUND)
        server.kill()
        return run, clients

    @pytest.mark.parametrize("kind", some_of(["flipped", "cut short"], "flipped"))
    def test_a_damaged_database_is_not_served(self, server: Server, hire: Hire, kind: str) -> None:
        """A few bits may be in unused parts of SQLite's file and do no damage; many bits do."""
        server.start()
        held_in_a_round(server, hire)
        assert server.stop() == 0
        database = server.data / "atoll.sqlite3"
        if kind == "flipped":
            flip_bits(database, 5, bits=database.stat().st_size // 64)
        else:
            cut(database, 5)
        assert_says(server, "the database is damaged")
