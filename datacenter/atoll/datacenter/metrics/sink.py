"""Sinks of records. The trainer writes to ``Sinks`` on rank 0; a sink that fails is dropped, and training continues."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from atoll.datacenter.metrics.record import Evaluation, RunFacts, StepRecord

log = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes records in order of their steps."""

    def step(self, record: StepRecord, /) -> None:
        """Take one record.

        Raises:
            OSError: if it cannot be kept; the sink is then closed and gets no more records.
        """
        ...

    def evaluated(self, evaluation: Evaluation, /) -> None:
        """Take a loss on held-out data; it comes before the record of its step. Raises as ``step``."""
        ...

    def close(self) -> None:
        """Release files and ports; no record comes after this."""
        ...


class Sinks:
    """Several sinks as one; closes them all."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)

    def step(self, record: StepRecord) -> None:
        """Pass a record to each sink; one that raises ``OSError`` is closed and dropped, with a warning."""
        self._each(record.step, lambda sink: sink.step(record))

    def evaluated(self, evaluation: Evaluation) -> None:
        """Pass an evaluation to each sink, as ``step`` does."""
        self._each(evaluation.step, lambda sink: sink.evaluated(evaluation))

    def _each(self, step: int, notify: Callable[[Sink], None]) -> None:
        for sink in tuple(self._sinks):
            try:
                notify(sink)
            except OSError as error:
                log.warning("step %d: no more metrics to %s: %s", step, type(sink).__name__, error)
                self._sinks.remove(sink)
                _close(sink)

    def take_over(self, others: Sinks) -> None:
        """Pass records to the sinks of another collection too, which is empty afterwards."""
        self._sinks += others._sinks
        others._sinks = []

    def close(self) -> None:
        """Close each sink, even if closing another one fails."""
        while self._sinks:
            _close(self._sinks.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class JsonLines:
    """Appends to a file: a line ``{"run": facts}``, then one line for each record and each evaluation.

    A job that is started again appends to the same file; if a step appears twice, the later line counts. Numbers that
    are not finite become null: JSON has no such numbers.

    Raises:
        OSError: if the file cannot be opened or written.
    """

    def __init__(self, path: Path, facts: RunFacts) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._write({"run": asdict(facts)})

    def step(self, record: StepRecord) -> None:
        """Append a record; the line reaches the operating system at once."""
        self._write(asdict(record))

    def evaluated(self, evaluation: Evaluation) -> None:
        """Append a line ``{"evaluation": ...}``."""
        self._write({"evaluation": {**asdict(evaluation), "perplexity": evaluation.perplexity}})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, value: dict[str, object]) -> None:
        self._file.write(json.dumps(_finite(value), allow_nan=False) + "\n")


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _close(sink: Sink) -> None:
    try:
        sink.close()
    except OSError as error:
        log.warning("closing %s: %s", type(sink).__name__, error)
