"""Forks Ray's worker processes from one that has imported what they need, which takes most of a worker's start.

A node starts ``python worker_forks.py ARGUMENT …`` as a worker. This asks the forker for a fork that runs Ray's own
worker program with these arguments and this environment, and ends: Ray knows a worker by what it registers with.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys

ADDRESS = "ATOLL_TESTS_RAY_FORKER"
"""Environment variable with the path of the forker's socket."""
LOADED = ("ray._private.workers.default_worker", "tests.simulation.cluster.participants", "torch.cuda")
"""Modules that the workers of most tests import, with what these import."""
JOB = "01000000"
"""Ray's id of the first job of a cluster."""
_PR_SET_PDEATHSIG = 1


def ask() -> None:
    """Ask the forker for a worker with the arguments and the environment of this process."""
    with socket.socket(socket.AF_UNIX) as forker:
        forker.connect(os.environ[ADDRESS])
        forker.sendall(json.dumps([sys.argv[1:], dict(os.environ)]).encode())


def end_with(node: int) -> None:
    """End this worker when the process of this descriptor, that of its node, ends."""
    select.select([node], [], [])
    os._exit(1)


def serve() -> None:
    """Fork a worker for each connection to the socket at descriptor 0, until the process that started this ends."""
    import ctypes  # noqa: PLC0415 - not for what asks
    import gc  # noqa: PLC0415
    import importlib  # noqa: PLC0415
    import runpy  # noqa: PLC0415
    import signal  # noqa: PLC0415
    import threading  # noqa: PLC0415

    # Ray reads these as it is loaded: the workers are of the first job, and end when this process does. ``end_with``
    # ends them with their nodes.
    os.environ.update(RAY_JOB_ID=JOB, RAY_RAYLET_PID=str(os.getpid()))
    for name in LOADED:
        importlib.import_module(name)
    gc.freeze()  # a fork's collector would go through what is loaded, and so copy it
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listening = socket.socket(fileno=0)
    while True:
        connection = listening.accept()[0]
        if os.fork():
            connection.close()
            continue
        with connection, connection.makefile("rb") as asked:
            arguments, environment = json.load(asked)
        os.dup2(1, listening.detach())
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.environ.clear()
        os.environ.update(environment)
        assert environment["RAY_JOB_ID"] == JOB, "Ray in a fork believes that it is of this job"
        raylet = os.pidfd_open(int(environment["RAY_RAYLET_PID"]))
        threading.Thread(target=end_with, args=(raylet,), daemon=True).start()
        program = sys.modules[LOADED[0]].__file__
        assert program
        sys.argv = [program, *arguments]
        runpy.run_path(program, run_name="__main__")
        return


if __name__ == "__main__":
    ask()
