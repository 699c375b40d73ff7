"""Send a run to a tracker: its states, one after the other, then its model and report."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

from atoll.operator.exports.mlflow import DEFAULT_EXPERIMENT, MlflowWriter
from atoll.operator.exports.tensorboard import TensorBoardWriter
from atoll.operator.exports.tracked import Tracked


class Writer(Protocol):
    """A destination for one run."""

    def write(self, run: Tracked) -> None:
        """Write new data."""
        ...

    def close(self) -> None:
        """Write pending data."""
        ...


W = TypeVar("W", bound=Writer)


def to_tensorboard(states: Iterable[Tracked], logdir: Path) -> Path:
    """Write a run's states below ``logdir``; return their folder. Raises as ``TensorBoardWriter``."""
    return _written(states, lambda first: TensorBoardWriter(logdir, first))[0].folder


def to_mlflow(
    states: Iterable[Tracked],
    write_artifacts: Callable[[Path], object],
    *,
    experiment: str = DEFAULT_EXPERIMENT,
    tracking_uri: str | None = None,
) -> str:
    """Write a run's states to MLflow, and at its end its model and report; return the id of MLflow's run.

    Args:
        states: the run's current state, then later ones.
        write_artifacts: writes the artifacts of an ended run into a folder.
        experiment: as for ``MlflowWriter``.
        tracking_uri: the tracking server or store.

    Raises:
        OperatorError: as ``MlflowWriter``.
        ImportError: if MLflow is not installed.
    """
    writer, last = _written(states, lambda first: MlflowWriter(experiment, tracking_uri, first))
    model = last.tags["atoll.model"]
    if last.ended and not writer.has_artifacts(model):
        with tempfile.TemporaryDirectory(prefix="atoll-mlflow-") as folder:
            write_artifacts(Path(folder))
            writer.upload(Path(folder), model)
    return writer.run_id


def _written(states: Iterable[Tracked], open_writer: Callable[[Tracked], W]) -> tuple[W, Tracked]:
    """The writer, closed, and the last state."""
    found = iter(states)
    last = next(found, None)
    if last is None:
        raise ValueError("a run has at least one state")
    writer = open_writer(last)
    try:
        for last in found:
            writer.write(last)
    finally:
        writer.close()
    return writer, last
