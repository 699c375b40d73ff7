"""Clients on one machine share its cores."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TextIO

import pytest
import torch

from atoll.client import events
from atoll.client.cli.cores import CoreShare
from atoll.client.task import RoundKey, TaskKind
from tests.patience import WAIT_S

INVITED = events.Invited(RoundKey("r1", 0, 0), "digits", TaskKind.TRAIN, 4, 60.0)
CORES = len(os.sched_getaffinity(0))

OTHER = """
import sys
from pathlib import Path
from atoll.client.cli.cores import CoreShare
share = CoreShare(lambda event: None, folder=Path(sys.argv[1]))
print("here", flush=True)
sys.stdin.read()
"""


def ignore(event: events.Event) -> None:
    del event


def test_the_cores_are_divided_by_the_clients_that_run(tmp_path: Path) -> None:
    mine = CoreShare(ignore, folder=tmp_path)
    assert (mine.clients(), mine.share()) == (1, CORES)
    arguments = [sys.executable, "-c", OTHER, str(tmp_path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "here\n"
        assert (mine.clients(), mine.share()) == (2, max(1, CORES // 2))
        other.kill()
        other.wait(WAIT_S)
    assert (mine.clients(), mine.share()) == (1, CORES), "a killed client has no share"
    mine.close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_another_client_removes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client counts at that moment, and takes a file without a lock for that of a client that has ended."""
    other = CoreShare(ignore, folder=tmp_path)
    lock, counted = fcntl.flock, list[int]()

    def late(file: TextIO, how: int) -> None:
        if how == fcntl.LOCK_EX and not counted:
            counted.append(0)
            counted.append(other.clients())
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    mine = CoreShare(ignore, folder=tmp_path)
    assert counted == [0, 1], "the other one was alone"
    assert mine.clients() == other.clients() == 2
    mine.close()
    assert other.clients() == 1
    other.close()


def test_a_file_that_was_made_again_since_another_client_opened_it_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, path, made, lock = CoreShare(ignore, folder=tmp_path), tmp_path / "1-1", list[TextIO](), fcntl.flock
    path.touch()

    def late(file: TextIO, how: int) -> None:
        if file.name == str(path) and not made:
            path.unlink()
            made.append(path.open("w"))
            lock(made[0], fcntl.LOCK_EX)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert mine.clients() == 2
    assert path.exists()
    made[0].close()
    assert mine.clients() == 1
    mine.close()


def test_a_smaller_number_of_threads_is_the_participants_own_choice(tmp_path: Path) -> None:
    before, share = torch.get_num_threads(), CoreShare(ignore, folder=tmp_path)
    try:
        torch.set_num_threads(CORES + 3)
        share(INVITED)
        assert torch.get_num_threads() == CORES
        torch.set_num_threads(1)
        share(INVITED)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
        share.close()


def test_torch_takes_the_share_in_the_thread_that_trains_and_events_go_on(tmp_path: Path) -> None:
    heard: list[events.Event] = []
    seen: list[int] = []
    before = torch.get_num_threads()
    share = CoreShare(heard.append, threads=1, folder=tmp_path)
    try:
        share(INVITED)
        worker = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        worker.start()
        worker.join(WAIT_S)
    finally:
        torch.set_num_threads(before)
        share.close()
    assert (heard, seen) == ([INVITED], [1])
