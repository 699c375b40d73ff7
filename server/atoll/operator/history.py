"""The rounds of a run: metrics as curves and rows, and a view for notebooks."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from atoll.operator.choosing import chosen_metrics
from atoll.operator.errors import BadInputError
from atoll.operator.html import page
from atoll.operator.run_job import job_of
from atoll.operator.table_files import write_csv, write_parquet
from atoll.operator.tables import participant_table, round_table
from atoll.server.control.best import best_model, judging_metrics
from atoll.server.control.curves import panels
from atoll.text.installing import install_hint

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from atoll.operator.tables import Table
    from atoll.server.control import BestModel, RoundSummary, RunDetail, RunSummary

Mode = Literal["max", "min"]
"""Which values of a metric are better: higher or lower ones."""
ENDED_PHASES = ("released", "abandoned")


@dataclass(frozen=True, repr=False)
class History(Sequence["RoundSummary"]):
    """A run with its rounds so far, oldest first: a sequence of every attempt. Shows itself in a notebook.

    Attributes:
        detail: the run, its rounds and its job, from the server.
    """

    detail: RunDetail

    @property
    def run(self) -> RunSummary:
        """The run as a whole."""
        return self.detail.run

    @property
    def rounds(self) -> tuple[RoundSummary, ...]:
        """Every attempt at every round."""
        return self.detail.rounds

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics of released rounds: accuracy, loss, then the others."""
        return tuple(panel.metric for panel in panels(self.rounds))

    def curve(self, metric: str) -> tuple[tuple[int, float], ...]:
        """(train rounds behind the model, value) from the most trustworthy source; empty before the first measurement.

        Raises:
            BadInputError: if other metrics were measured and this one was not.
        """
        found = {panel.metric: panel.best_curve.points for panel in panels(self.rounds)}
        return chosen_metrics(found, (metric,), self._whose)[0] if found else ()

    def metric(self, name: str) -> list[float]:
        """The values of a metric by its full name, such as ``server/accuracy``, for the attempts that have one.

        Raises:
            BadInputError: if other metrics were measured and this one was not.
        """
        found: dict[str, list[float]] = {}
        for item in self.rounds:
            for key, value in item.metrics.items():
                found.setdefault(key, []).append(value)
        return chosen_metrics(found, (name,), self._whose)[0] if found else []

    @property
    def _whose(self) -> str:
        return f"the rounds of run {self.run.run}"

    def best(self, metric: str | None = None, mode: Mode | None = None) -> BestModel:
        """The best model, the first that reached the best value.

        Args:
            metric: ``eval/NAME`` or ``server/NAME``; None: the job's (``retention.best``, or ``stop.metric``). Only a
                model by the job's metric is sure to be kept.
            mode: whether higher (max) or lower (min) values are better; None: as in the job, if it names the metric.

        Raises:
            BadInputError: if no metric is known, the mode is missing, or no model was measured.
        """
        decides = job_of(self.detail).best
        if metric is None or (decides is not None and (metric, mode or decides[1]) == decides):
            return _found(self.detail.best, self, metric or (decides[0] if decides else None))
        if mode is None:
            raise BadInputError(
                f"the job does not say which values of {metric} are better", "give mode (--mode): max or min"
            )
        return _found(best_model(self.rounds, metric, mode), self, metric)

    def rows(self) -> list[dict[str, object]]:
        """A row for each attempt, its metrics as columns; ``duration_s`` is virtual in a simulation."""
        plain = ("round", "attempt", "kind", "phase", "cohort", "reported", "total_weight", "duration_s")
        found: list[dict[str, object]] = [{name: getattr(item, name) for name in plain} for item in self.rounds]
        for row, item in zip(found, self.rounds, strict=True):
            row.update(item.metrics)
        return found

    def to_pandas(self) -> Any:
        """The rows as a ``pandas.DataFrame``.

        Raises:
            ImportError: if pandas is not installed.
        """
        return importlib.import_module("pandas").DataFrame(self.rows())

    def table(self, *, by_participant: bool = False) -> Table:
        """A row for each attempt, or for each participant of each attempt, under the columns of docs/exports.md.

        Raises:
            BadInputError: with ``by_participant``, if the history was fetched without ``members=True``.
        """
        return participant_table(self.rounds) if by_participant else round_table(self.rounds)

    def to_csv(self, path: str | Path, *, by_participant: bool = False) -> Path:
        """Write ``table`` to a CSV file.

        Raises:
            BadInputError: as ``table``, and if the file cannot be written.
        """
        write_csv(self.table(by_participant=by_participant), found := Path(path))
        return found

    def to_parquet(self, path: str | Path, *, by_participant: bool = False) -> Path:
        """Write ``table`` to a Parquet file.

        Raises:
            BadInputError: as ``table``, and if the file cannot be written.
            ImportError: if pyarrow is not installed (the extra ``parquet``).
        """
        write_parquet(self.table(by_participant=by_participant), found := Path(path))
        return found

    def plot(self, *metrics: str) -> Figure:
        """Draw metrics over the rounds behind the model, each in its own axes; by default all metrics.

        Returns:
            A matplotlib figure, which a notebook shows.

        Raises:
            BadInputError: if a metric was not measured, or none was.
            ImportError: if matplotlib is not installed.
        """
        chosen = chosen_metrics({panel.metric: panel for panel in panels(self.rounds)}, metrics, self._whose)
        try:
            from atoll.server.report.plots import metrics_plot  # noqa: PLC0415 - matplotlib is of another extra
        except ImportError as error:
            raise ImportError(f"a plot needs {error.name}: {install_hint('server')}") from error
        return metrics_plot(chosen)

    @overload
    def __getitem__(self, index: int) -> RoundSummary: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RoundSummary, ...]: ...
    def __getitem__(self, index: int | slice) -> RoundSummary | tuple[RoundSummary, ...]:
        return self.rounds[index]

    def __len__(self) -> int:
        return len(self.rounds)

    def __repr__(self) -> str:
        run = self.run
        return f"<History of run {run.run}: {run.status}, {run.rounds_released}/{run.rounds_total} rounds released>"

    def _repr_html_(self) -> str:
        return page(self.detail)


def _found(best: BestModel | None, history: History, metric: str | None) -> BestModel:
    if best is not None:
        return best
    run = history.run.run
    if metric is None:
        raise BadInputError(
            f"the job of run {run} does not say which metric decides",
            'name a metric, or submit the job with [retention] best = "..."',
        )
    measured = ", ".join(judging_metrics(history.rounds)) or "none"
    remedy = "choose one of these" if measured != "none" else "wait for a released round"
    raise BadInputError(f"run {run} has no model with metric {metric!r}; measured so far: {measured}", remedy)


class Rounds:
    """The rounds of a running run: fetches only new rounds, and the last known one again.

    Args:
        fetch: returns the run with its rounds from this one on.
    """

    def __init__(self, fetch: Callable[[int], RunDetail]) -> None:
        self._fetch = fetch
        self._known: dict[tuple[int, int], RoundSummary] = {}

    def refreshed(self) -> RunDetail:
        """The run with all its rounds."""
        ended = (item.round for item in self._known.values() if item.phase in ENDED_PHASES)
        detail = self._fetch(max(ended, default=0))
        self._known |= {(item.round, item.attempt): item for item in detail.rounds}
        return replace(detail, rounds=tuple(self._known[key] for key in sorted(self._known)))
