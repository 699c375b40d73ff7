"""Supervision of small child processes; every test checks that they have ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import psutil
import pytest

from atoll.processes import (
    ChildFailedError,
    EndedBySignalError,
    Processes,
    raising_on_signals,
    read_line,
    tail,
)
from tests.patience import WAIT_S

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)
PARENT = (
    "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
    "print(child.pid, flush=True); time.sleep(600)"
)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def wait_for_output(log: Path) -> str:
    """The first line of a log, when it is there."""
    for _ in range(1000):
        text = log.read_text()
        if text.endswith("\n"):
            return text.strip()
        threading.Event().wait(0.01)
    raise AssertionError(f"{log} stayed empty")


def alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def pids(processes: Processes) -> list[int]:
    return [child.process.pid for child in processes._children]


def test_leaving_ends_every_process(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        processes.start("a", python(SLEEPER))
        processes.start("b", python(SLEEPER))
        started = pids(processes)
        assert wait_for_output(tmp_path / "a.log") == "up"
        processes.check()
    assert not any(map(alive, started))


def test_children_of_children_are_ended_too(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        processes.start("parent", python(PARENT))
        grandchild = int(wait_for_output(tmp_path / "parent.log"))
        assert alive(grandchild)
    psutil.wait_procs([process for process in psutil.process_iter() if process.pid == grandchild], timeout=WAIT_S)
    assert not alive(grandchild)


def test_a_process_that_does_not_listen_is_killed_after_the_grace(tmp_path: Path) -> None:
    with Processes(tmp_path, grace_s=0.2) as processes:
        processes.start("stubborn", python(STUBBORN))
        wait_for_output(tmp_path / "stubborn.log")
        started = pids(processes)
    assert not any(map(alive, started))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('no disk left'); raise SystemExit(3)", "bad ended with exit code 3"),
        (
            "import os, signal; print('no disk left', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
            "signal SIGKILL",
        ),
    ],
)
def test_a_process_that_ends_is_a_failure_with_the_end_of_its_log(tmp_path: Path, code: str, words: str) -> None:
    failed = threading.Event()
    with Processes(tmp_path) as processes:
        processes.on_failure = failed.set
        processes.start("good", python(SLEEPER))
        processes.start("bad", python(code))
        assert failed.wait(WAIT_S)
        with pytest.raises(ChildFailedError, match=words) as caught:
            processes.check()
        assert "  | no disk left" in str(caught.value)


def test_ending_on_purpose_is_no_failure(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        processes.start("a", python(SLEEPER))
    processes.check()
    processes.stop()


def test_environment_and_descriptors_reach_the_child(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    code = f"import os; os.write({writing}, os.environ['COLOUR'].encode()); import time; time.sleep(600)"
    with Processes(tmp_path) as processes, os.fdopen(reading, "rb") as pipe:
        processes.start("a", python(code), {"COLOUR": "green"}, (writing,))
        os.close(writing)
        assert pipe.read(5) == b"green"


def test_a_child_can_be_interrupted_although_it_was_started_with_signals_held_back(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        processes.start("a", python("import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)"))
        assert wait_for_output(tmp_path / "a.log") == "set()"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_become_exceptions(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # nohup has hang-ups ignored
    try:
        with pytest.raises(EndedBySignalError, match=number.name) as caught, raising_on_signals():
            signal.raise_signal(number)
        assert caught.value.exit_code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("\n".join(map(str, range(100))))
    assert tail(log, 2) == "  | 98\n  | 99"
    log.write_text("")
    assert tail(log) == "  | (empty)"


SUPERVISOR = textwrap.dedent("""
    import sys, threading
    from pathlib import Path
    from atoll.processes import EndedBySignalError, Processes, raising_on_signals
    try:
        with raising_on_signals(), Processes(Path(sys.argv[1]), grace_s=1.0) as processes:
            for name in ("a", "b"):
                processes.start(name, [sys.executable, "-c", sys.argv[2]])
            print(*(child.process.pid for child in processes._children), flush=True)
            threading.Event().wait(60)
    except (KeyboardInterrupt, EndedBySignalError):
        print("clean", flush=True)
""")


ENDINGS = [
    (number, child) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) for child in (SLEEPER, STUBBORN)
]
if sys.platform == "linux":
    ENDINGS.append((signal.SIGKILL, SLEEPER))


@pytest.mark.parametrize(("number", "child"), ENDINGS)
def test_nothing_is_left_when_the_supervisor_is_ended(tmp_path: Path, number: signal.Signals, child: str) -> None:
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path), child], stdout=subprocess.PIPE, text=True
    )
    with supervisor:
        assert supervisor.stdout is not None
        started = [int(pid) for pid in supervisor.stdout.readline().split()]
        for name in ("a", "b"):
            wait_for_output(tmp_path / f"{name}.log")
        assert all(map(alive, started))
        supervisor.send_signal(number)
        assert supervisor.wait(WAIT_S) == (-signal.SIGKILL if number is signal.SIGKILL else 0)
    psutil.wait_procs([psutil.Process(pid) for pid in started if psutil.pid_exists(pid)], timeout=WAIT_S)
    assert not any(map(alive, started))


def test_the_line_of_a_ready_child_comes_in_pieces_or_not_at_all() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"ab")
    assert read_line(reading, 0.05) == b""
    os.write(writing, b"cd\n")
    assert read_line(reading, 5.0) == b"cd\n"
    os.write(writing, b"cut")
    os.close(writing)
    assert read_line(reading, 5.0) == b""
    os.close(reading)
