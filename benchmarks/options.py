"""Options of a case on the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.figures import Figure

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """Settings of one run of a case; None leaves a setting to the case.

    Attributes:
        smoke: tiny sizes: only that everything runs.
        model_mb: size of the model in 10^6 bytes of float32.
        clients: participants.
        workers: ingest processes of the server.
        rounds: measured rounds.
        minutes: duration of a soak.
        tls: with TLS, without, or the case's default.
        only: the single part of the case to measure.
    """

    smoke: bool = False
    model_mb: float | None = None
    clients: int | None = None
    workers: int | None = None
    rounds: int | None = None
    minutes: float | None = None
    tls: bool | None = None
    only: str | None = None

    def or_else(self, given: T | None, usual: T, small: T) -> T:
        """A setting as given, else ``small`` in a smoke run, else ``usual``."""
        if given is not None:
            return given
        return small if self.smoke else usual

    def command(self, name: str) -> str:
        """The command line that measures these figures."""
        given = {
            "--model-mb": self.model_mb,
            "--clients": self.clients,
            "--workers": self.workers,
            "--rounds": self.rounds,
        }
        words = [f"{option} {value:g}" for option, value in given.items() if value is not None]
        if self.tls is not None:
            words.append("--tls" if self.tls else "--insecure")
        if self.only is not None:
            words.append(f"--only {self.only}")
        return " ".join(["python -m benchmarks", name, *words])


@dataclass(frozen=True)
class Case:
    """A benchmark.

    Attributes:
        run: measures.
        takes: the settings that it accepts, besides ``smoke``; others are refused.
        by_name_only: whether it only runs when named.
        parts: the choices of ``only``, if the case accepts it.
    """

    run: Callable[[Options], list[Figure]]
    takes: frozenset[str] = frozenset()
    by_name_only: bool = False
    parts: tuple[str, ...] = ()

    def refused(self, options: Options) -> list[str]:
        """The given settings that this case does not accept."""
        given = {name for name, value in vars(options).items() if value is not None}
        return sorted(given - self.takes - {"smoke"})


def progress(text: str) -> None:
    """Report the current measurement on standard error."""
    print(f"  {text}", file=sys.stderr, flush=True)
