"""Follows a run: a live picture on a terminal, lines of text elsewhere, JSON lines on request."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Protocol

import click
from rich.live import Live
from rich.text import Text

from atoll.operator import Run
from atoll.operator.history import ENDED_PHASES, Rounds
from atoll.operator.run import checked
from atoll.operator.run_job import has_secret_draw
from atoll.server.cli.errors import StoppedError
from atoll.server.cli.formats import closing_lines, round_line
from atoll.server.cli.output import console, print_json
from atoll.server.cli.picture import Picture
from atoll.server.cli.unmeasured import unmeasured_lines
from atoll.server.control import Progress, RoundSummary, RunDetail, RunSummary
from atoll.server.control.names import names_of
from atoll.text.figures import counted

HISTORY_INTERVAL_S = 0.5
"""Minimum seconds between two fetches of the ended rounds."""


class Sink(Protocol):
    """Receives the changes of a run."""

    def change(self, progress: Progress) -> None:
        """Handle a change of the run."""
        ...

    def history(self, detail: RunDetail) -> None:
        """Handle the rounds so far, after one has ended."""
        ...

    def notice(self, text: str) -> None:
        """Handle a message about the connection."""
        ...


class LineSink:
    """Prints one line for each ended round."""

    def __init__(self) -> None:
        self._shown = 0
        self._waited_for: tuple[int, bool] | None = None
        self._paused = False

    def change(self, progress: Progress) -> None:
        """Print ended rounds, pauses and, once per round, that it waits for participants."""
        item, paused = progress.round, progress.run.status == "paused"
        if paused and not self._paused:
            self.notice("; ".join(part for part in ("paused", progress.run.reason) if part))
        self._paused = paused
        if not paused and item is not None and item.phase == "created":
            self._waits(progress, item)

    def _waits(self, progress: Progress, item: RoundSummary) -> None:
        """Print that a round waits, and again once the server gives a reason, such as an absent participant."""
        why, at = progress.run.reason, (item.round, bool(progress.run.reason))
        if (why or progress.connected < item.wanted) and self._waited_for not in (at, (item.round, True)):
            waiting = f"waiting for participants: {progress.connected} connected, {item.wanted} wanted"
            self.notice(f"{waiting}; {why}" if why else waiting)
            self._waited_for = at

    def history(self, detail: RunDetail) -> None:
        """Print new rounds."""
        ended = [item for item in detail.rounds if item.phase in ENDED_PHASES]
        total, named, names = detail.run.rounds_total, not has_secret_draw(detail), names_of(detail.rounds)
        for item in ended[self._shown :]:
            click.echo(round_line(item, total, named=named, names=names))
        self._shown = max(self._shown, len(ended))

    def notice(self, text: str) -> None:
        """Print the message on stderr."""
        click.echo(text, err=True)


class NoticeSink(LineSink):
    """Prints only messages, on stderr, for commands that print the run's result."""

    def history(self, detail: RunDetail) -> None:
        """Print nothing."""


class JsonSink(LineSink):
    """Prints each change as a JSON object on one line."""

    def change(self, progress: Progress) -> None:
        """Print the change."""
        print_json(progress, line=True)

    def history(self, detail: RunDetail) -> None:
        """Print nothing, since each change is complete."""


class LiveSink:
    """Shows a picture that is redrawn a few times a second."""

    def __init__(self, picture: Picture, live: Live) -> None:
        self._picture = picture
        self._live = live

    def change(self, progress: Progress) -> None:
        """Show the current round."""
        self._picture.change(progress, time.monotonic())

    def history(self, detail: RunDetail) -> None:
        """Show the ended rounds."""
        self._picture.history(detail)

    def notice(self, text: str) -> None:
        """Print the message above the picture."""
        self._live.console.print(Text(text))


def watch(run: Run, *, json_output: bool = False) -> RunSummary:
    """Follow a run until it has ended.

    Raises:
        StoppedError: on Ctrl-C; the run continues.
        UnreachableError: if the server is unreachable for too long.
    """
    try:
        if json_output:
            return follow(run, JsonSink())
        return observe(run)
    except KeyboardInterrupt:
        raise StoppedError(f"stopped watching; the run continues: atoll run watch {run.id}") from None


def observe(run: Run) -> RunSummary:
    """Follow a run in a live picture on a terminal, else in lines. Raises like ``watch``, or KeyboardInterrupt."""
    shown = console()
    if not shown.is_terminal:
        return follow(run, LineSink())
    picture = Picture(time.monotonic)
    with Live(get_renderable=picture.render, console=shown, refresh_per_second=8) as live:
        return follow(run, LiveSink(picture, live))


def follow(run: Run, sink: Sink) -> RunSummary:
    """Pass every change to ``sink`` until the run has ended.

    Raises:
        UnreachableError: if the server is unreachable for longer than the connection's ``reconnect_s``.
    """
    historian, summary = _Historian(run, sink), None
    for progress in run.follow(lost=sink.notice):
        sink.change(progress)
        historian.consider(progress)
        summary = progress.run
    for line in historian.closing_lines():
        sink.notice(line)
    if summary is None:
        raise RuntimeError("following a run shows at least where it stands")
    return summary


class _Historian:
    """Fetches the rounds when one has ended, spending at most 5% of the time on it."""

    def __init__(self, run: Run, sink: Sink) -> None:
        self._known = Rounds(lambda since: run.detail(since=since, members=True))
        self._sink = sink
        self._seen: tuple[int, int] | None = None
        self._next_at = 0.0
        self._last: RunDetail | None = None
        self._noticed = False

    def consider(self, progress: Progress) -> None:
        at = None if progress.round is None else (progress.round.round, progress.round.attempt)
        due = at != self._seen and time.monotonic() >= self._next_at
        if not due and not progress.run.ended:
            return
        began = time.monotonic()
        self._last = self._known.refreshed()
        self._sink.history(self._last)
        if not self._last.run.ended:
            self._notice_once(unmeasured_lines(self._last))
        took = time.monotonic() - began
        self._seen, self._next_at = at, began + max(HISTORY_INTERVAL_S, 20 * took)

    def _notice_once(self, lines: Iterable[str]) -> None:
        """Warn once about unmeasured deciding metrics, after the first round with metrics."""
        lines = tuple(lines)
        if lines and not self._noticed:
            self._noticed = True
            for line in lines:
                self._sink.notice(line)

    def closing_lines(self) -> Iterator[str]:
        """Lines about participants that were invited but did not count, and about unmeasured metrics."""
        if self._last is not None:
            yield from closing_lines(self._last.rounds, secret=has_secret_draw(self._last))
            yield from unmeasured_lines(self._last)


def finish(run: RunSummary) -> None:
    """Print how a watched run ended.

    Raises:
        RunFailedError: if it failed or was cancelled.
    """
    checked(run)
    early = f", {run.reason}" if run.rounds_released < run.rounds_total else ""
    click.echo(f"run {run.run} finished: {counted(run.rounds_released, 'round')} released{early}", err=True)
