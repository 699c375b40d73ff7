"""Parts shared by the commands that serve until they are interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping

import click


def stop_event() -> asyncio.Event:
    """An event that is set by a signal to stop (SIGINT, SIGTERM, SIGHUP)."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopping.set)
    return stopping


def announce(facts: Mapping[str, str | None], sentence: str, ready_fd: int | None) -> None:
    """Announce that the process serves: ``facts`` as a JSON line to a descriptor, the sentence to standard error."""
    if ready_fd is not None:
        with os.fdopen(ready_fd, "w") as file:
            file.write(json.dumps(facts) + "\n")
    with contextlib.suppress(BrokenPipeError):
        click.echo(f"{sentence}; Ctrl-C stops", file=sys.stderr)
