"""Following a run: a live picture on a terminal, lines of text elsewhere, JSON lines when asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import click
from rich.live import Live
from rich.text import Text

from atoll.server.cli.client import ControlClient
from atoll.server.cli.errors import RunFailedError, StoppedError, UnreachableError
from atoll.server.cli.formats import has_secret_draw, never_counted_lines, round_line
from atoll.server.cli.output import console, print_json
from atoll.server.cli.picture import Picture
from atoll.server.control import Progress, RoundSummary, RunDetail, RunSummary
from atoll.text.figures import counted

RECONNECT_S = 60.0
"""Seconds that a server may be unreachable before watching ends."""
HISTORY_INTERVAL_S = 0.5
"""Minimum seconds between two fetches of the ended rounds."""

ENDED_PHASES = ("released", "abandoned")


class Sink(Protocol):
    """Receives the changes of a run."""

    def change(self, progress: Progress) -> None:
        """The run changed."""
        ...

    def history(self, detail: RunDetail) -> None:
        """The rounds so far, when one has ended."""
        ...

    def notice(self, text: str) -> None:
        """A message about the connection."""
        ...


class LineSink:
    """One line for each round that ended."""

    def __init__(self) -> None:
        self._shown = 0
        self._waited_for = -1
        self._paused = False

    def change(self, progress: Progress) -> None:
        """Print ended rounds, pauses, and once per round that it waits for participants."""
        item, paused = progress.round, progress.run.status == "paused"
        if paused and not self._paused:
            self.notice("; ".join(part for part in ("paused", progress.run.reason) if part))
        self._paused = paused
        if not paused and item is not None and item.phase == "created" and progress.connected < item.wanted:
            if self._waited_for != item.round:
                self.notice(f"waiting for participants: {progress.connected} connected, {item.wanted} wanted")
            self._waited_for = item.round

    def history(self, detail: RunDetail) -> None:
        """Print the rounds that are new."""
        ended = [item for item in detail.rounds if item.phase in ENDED_PHASES]
        for item in ended[self._shown :]:
            click.echo(round_line(item, detail.run.rounds_total, named=not has_secret_draw(detail)))
        self._shown = max(self._shown, len(ended))

    def notice(self, text: str) -> None:
        """Print it on stderr."""
        click.echo(text, err=True)


class JsonSink(LineSink):
    """One JSON object a line for each change."""

    def change(self, progress: Progress) -> None:
        """Print it."""
        print_json(progress, line=True)

    def history(self, detail: RunDetail) -> None:
        """Print nothing: each change is complete."""


class LiveSink:
    """A picture that is redrawn a few times a second."""

    def __init__(self, picture: Picture, live: Live) -> None:
        self._picture = picture
        self._live = live

    def change(self, progress: Progress) -> None:
        """Show the round in work."""
        self._picture.change(progress, time.monotonic())

    def history(self, detail: RunDetail) -> None:
        """Show the rounds that ended."""
        self._picture.history(detail)

    def notice(self, text: str) -> None:
        """Print it above the picture."""
        self._live.console.print(Text(text))


def watch(client: ControlClient, run: str, *, json_output: bool = False) -> RunSummary:
    """Follow a run until it has ended.

    Raises:
        StoppedError: on Ctrl-C; the run goes on.
        CommandError: if the server is unreachable for too long.
    """
    try:
        if json_output:
            return follow(client, run, JsonSink())
        return observe(client, run)
    except KeyboardInterrupt:
        raise StoppedError(f"stopped watching; the run goes on: atoll run watch {run}") from None


def observe(client: ControlClient, run: str, reconnect_s: float = RECONNECT_S) -> RunSummary:
    """Follow a run in a live picture on a terminal, in lines elsewhere. Raises as ``watch``, and KeyboardInterrupt."""
    shown = console()
    if not shown.is_terminal:
        return follow(client, run, LineSink(), reconnect_s)
    picture = Picture(time.monotonic)
    with Live(get_renderable=picture.render, console=shown, refresh_per_second=8) as live:
        return follow(client, run, LiveSink(picture, live), reconnect_s)


def follow(client: ControlClient, run: str, sink: Sink, reconnect_s: float = RECONNECT_S) -> RunSummary:
    """Pass every change to ``sink`` until the run has ended.

    Raises:
        UnreachableError: if the server is unreachable for longer than ``reconnect_s``.
    """
    historian = _Historian(client, run, sink)
    seen: RunSummary | None = None
    while True:
        try:
            for progress in client.watch(run):
                seen = progress.run
                sink.change(progress)
                historian.consider(progress)
                if seen.ended:
                    for line in historian.never_counted():
                        sink.notice(line)
                    return seen
        except UnreachableError:
            if seen is None or not reconnect_s:
                raise
        sink.notice(f"lost the server at {client.address}; waiting up to {reconnect_s:.0f} s for it to come back")
        client.wait_until_reachable(reconnect_s)


class _Historian:
    """Fetches the rounds when one has ended, but spends at most a twentieth of the time on it."""

    def __init__(self, client: ControlClient, run: str, sink: Sink) -> None:
        self._client = client
        self._run = run
        self._sink = sink
        self._seen: tuple[int, int] | None = None
        self._next_at = 0.0
        self._rounds: dict[tuple[int, int], RoundSummary] = {}
        self._secret = False

    def consider(self, progress: Progress) -> None:
        at = None if progress.round is None else (progress.round.round, progress.round.attempt)
        due = at != self._seen and time.monotonic() >= self._next_at
        if not due and not progress.run.ended:
            return
        began = time.monotonic()
        self._sink.history(self._fetched())
        took = time.monotonic() - began
        self._seen, self._next_at = at, began + max(HISTORY_INTERVAL_S, 20 * took)

    def never_counted(self) -> Iterator[str]:
        """Lines about participants that were invited and never counted."""
        return never_counted_lines(tuple(self._rounds.values()), secret=self._secret)

    def _fetched(self) -> RunDetail:
        """The run; only new rounds are fetched, and the last known one again."""
        ended = (item.round for item in self._rounds.values() if item.phase in ENDED_PHASES)
        detail = self._client.run(self._run, since=max(ended, default=0), members=True)
        self._rounds |= {(item.round, item.attempt): item for item in detail.rounds}
        self._secret = has_secret_draw(detail)
        return replace(detail, rounds=tuple(self._rounds[key] for key in sorted(self._rounds)))


def finish(run: RunSummary) -> None:
    """Print how a watched run ended.

    Raises:
        RunFailedError: if it failed or was cancelled.
    """
    if run.status != "finished":
        raise RunFailedError(f"run {run.run} {run.status}: {run.reason or 'no reason was given'}")
    click.echo(f"run {run.run} finished: {counted(run.rounds_released, 'round')} released", err=True)
