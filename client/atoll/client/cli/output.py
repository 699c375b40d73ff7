"""The output of ``atoll client``: a JSON line per event, or lines of text and a progress bar for long transfers."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import click

from atoll.client import events
from atoll.client._clock import now_s
from atoll.text.figures import counted
from atoll.text.printable import printable

log = logging.getLogger("atoll.client")
BAR_AFTER_S = 1.0
PROGRESS_EVERY_S = 1.0
_BAR_WIDTH = 30
_BAR_EVERY_S = 0.1
_COUNT_EVERY_S = 0.5
_WHOLE = 1e15
_ERASED = "\r\033[K"
"""Empties the line of a terminal."""


class JsonLines:
    """One JSON object per line on stdout, with the wall-clock time in ``at`` (seconds since the epoch).

    The progress of a transfer is printed at most once a second, and at its end.
    """

    def __init__(self) -> None:
        self._printed_at = 0.0

    def say(self, text: str) -> None:
        """Log progress before the first event."""
        log.info("%s", text)

    @contextmanager
    def during(self, text: str) -> Iterator[None]:
        """Log what is about to be done; the context does nothing else."""
        self.say(text)
        yield

    def __call__(self, event: events.Event) -> None:
        """Print one event."""
        if isinstance(event, events.Transferred) and event.done_bytes < event.total_bytes:
            if now_s() - self._printed_at < PROGRESS_EVERY_S:
                return
            self._printed_at = now_s()
        click.echo(json.dumps({"at": round(time.time(), 3), **event.as_dict()}))


class HumanLines:
    """Lines on stdout; on a terminal also a progress bar, on stderr, for transfers of more than a second."""

    def __init__(self, bar_to: TextIO | None = None) -> None:
        self._bar_to = sys.stderr if bar_to is None else bar_to
        self._bars = self._bar_to.isatty()
        self._lock = threading.Lock()
        self._transfer: tuple[str, float] = ("", 0.0)
        self._drawn_at = 0.0

    def say(self, text: str) -> None:
        """Show the current activity before there are events."""
        with self._lock:
            _print(text)

    @contextmanager
    def during(self, text: str) -> Iterator[None]:
        """Show the current activity, and on a terminal its duration in seconds."""
        self.say(text)
        if not self._bars:
            yield
            return
        ended = threading.Event()
        counting = threading.Thread(target=self._count, args=(ended,), daemon=True)
        counting.start()
        try:
            yield
        finally:
            ended.set()
            counting.join()
            self._draw(_ERASED)

    def _count(self, ended: threading.Event) -> None:
        began = now_s()
        while not ended.wait(_COUNT_EVERY_S):
            self._draw(f"\r{now_s() - began:.0f} s")

    def __call__(self, event: events.Event) -> None:
        """Show one event."""
        with self._lock:
            if isinstance(event, events.Transferred):
                self._show_transfer(event)
                return
            self._clear_bar()
            text = describe(event)
            if text:
                _print(text)

    def _show_transfer(self, event: events.Transferred) -> None:
        if not self._bars:
            return
        now = now_s()
        name = f"{event.key} {event.direction}"
        if self._transfer[0] != name:
            self._transfer = (name, now)
        if event.done_bytes >= event.total_bytes:
            self._clear_bar()
            self._transfer = ("", 0.0)
        elif now - self._transfer[1] > BAR_AFTER_S and now - self._drawn_at > _BAR_EVERY_S:
            self._drawn_at = now
            self._draw(f"\r{bar(event)}")

    def _clear_bar(self) -> None:
        if self._drawn_at:
            self._draw(_ERASED)
            self._drawn_at = 0.0

    def _draw(self, text: str) -> None:
        self._bar_to.write(text)
        self._bar_to.flush()


def _print(text: str) -> None:
    """Print a line with the time of day."""
    click.echo(f"{time.strftime('%H:%M:%S')} {printable(text)}")


def bar(event: events.Transferred) -> str:
    """A transfer as one line: direction, bar, percentage, sizes."""
    share = event.done_bytes / max(1, event.total_bytes)
    filled = int(share * _BAR_WIDTH)
    sizes = f"{event.done_bytes / 1e6:.0f} of {event.total_bytes / 1e6:.0f} MB"
    return f"{event.direction:<8} [{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {share:4.0%} {sizes}"


def describe(event: events.Event) -> str:
    """An event as one line of text."""
    writer = _WRITERS.get(type(event))
    line = writer(event) if writer is not None else event.name
    if isinstance(event, events.RoundEvent):
        again = f" (attempt {event.key.attempt + 1})" if event.key.attempt else ""
        return f"round {event.key.round + 1}{again}: {line}"
    return line


def _invited(event: events.Invited) -> str:
    asked = "for statistics" if event.kind == "statistics" else f"to {event.kind}"
    return f"{event.run_name} asks {asked}, cohort {event.cohort_size}, {event.remaining_s:.0f} s left"


def _trained(event: events.Trained) -> str:
    metrics = ", ".join(f"{name} {_figure(value)}" for name, value in event.metrics.items())
    return f"worked on {_examples(event.weight)} for {event.seconds:.1f} s{': ' + metrics if metrics else ''}"


def _examples(weight: int) -> str:
    return f"{weight:,} example{'' if weight == 1 else 's'}"


def _figure(value: float) -> str:
    """Integers in full, other numbers with four digits."""
    return f"{value:,.0f}" if value.is_integer() and abs(value) < _WHOLE else f"{value:.4g}"


_WRITERS: dict[type[events.Event], Callable[..., str]] = {
    events.Connected: lambda e: f"connected to {e.server} as {e.participant}",
    events.Disconnected: lambda e: f"not connected: {e.reason}; next try in {e.retry_in_s:.1f} s",
    events.Invited: _invited,
    events.Declined: lambda e: f"declined: {e.reason}",
    events.Trained: _trained,
    events.Reported: lambda e: f"reported weight {e.weight}: {e.disposition}",
    events.Stopped: lambda e: f"stopped: {e.reason}",
    events.Failed: lambda e: f"failed: {e.reason}",
    events.CheckedIn: lambda e: f"checked in; again in {e.next_in_s:.0f} s at the latest",
    events.Renewed: lambda e: f"certificate renewed for {e.lifetime_s / 3600:.1f} h",
    events.Finished: lambda e: f"finished after {counted(e.reported, 'report')}: {e.reason}",
}
