"""Write a run to MLflow (the extra ``mlflow``), found by its tag, so writing it twice creates no second run."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import os
import posixpath
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.operator.errors import BadInputError, OperatorError
from atoll.operator.exports.tracked import RUN_TAG
from atoll.text.installing import install_hint

if TYPE_CHECKING:
    from atoll.operator.exports.tracked import Tracked

T = TypeVar("T")
DEFAULT_EXPERIMENT = "atoll"
MAX_NAME = 250
MAX_VALUE = 6000
"""Maximum number of characters of a parameter's or tag's value (https://mlflow.org/docs/latest/, "Limits")."""
MAX_PARAMS = 100
MAX_METRICS = 1000
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]", re.ASCII)
_STATUSES = {"finished": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}
_OPENING = threading.Lock()
"""Held while a store is opened: MLflow creates the tables of a new store, which fails in two threads at once."""
_UPLOADED = "atoll.artifacts"
"""The tag with the digest of the model whose artifacts are stored."""


class MlflowWriter:
    """Writes one run; continues the MLflow run with its tag.

    Args:
        experiment: name of the experiment; made if it does not exist.
        tracking_uri: the tracking server or store; None: as MLflow finds it (``MLFLOW_TRACKING_URI``).
        first: the run as it is now.

    Attributes:
        run_id: the id of MLflow's run.

    Raises:
        ImportError: if MLflow is not installed.
        BadInputError: if the experiment is deleted.
        OperatorError: if MLflow refuses or cannot be reached; also from the other methods.
    """

    def __init__(self, experiment: str, tracking_uri: str | None, first: Tracked) -> None:
        self._mlflow = _Mlflow()
        with self._mlflow.errors(), _OPENING:
            self._client: Any = self._mlflow.client(tracking_uri)
            self.run_id, self._written = self._begun(self._experiment(experiment), first)
            self._params(first)
        self.write(first)

    def write(self, run: Tracked) -> None:
        """Add new metrics and the current tags, and at the end of the run its status."""
        new = [point for point in run.points if (mlflow_name(point.name), point.step) not in self._written]
        metrics = [
            self._mlflow.metric(mlflow_name(point.name), point.value, _ms(point.at), point.step) for point in new
        ]
        tags = [self._mlflow.tag(name, value[:MAX_VALUE]) for name, value in run.tags.items()]
        with self._mlflow.errors():
            for batch in _batches(metrics, MAX_METRICS):
                self._client.log_batch(self.run_id, metrics=batch)
            self._client.log_batch(self.run_id, tags=tags)
            if run.ended_at is not None:
                self._client.set_terminated(self.run_id, _STATUSES[run.status], _ms(run.ended_at))
        self._written |= {(mlflow_name(point.name), point.step) for point in new}

    def has_artifacts(self, model: str) -> bool:
        """Whether the artifacts of the model with this digest are stored."""
        with self._mlflow.errors():
            found: str = self._client.get_run(self.run_id).data.tags.get(_UPLOADED, "")
        return found == model

    def upload(self, folder: Path, model: str) -> None:
        """Send the files of a folder as the artifacts of the model with this digest."""
        with self._mlflow.errors():
            self._client.log_artifacts(self.run_id, str(folder))
            self._client.set_tag(self.run_id, _UPLOADED, model)

    def close(self) -> None:
        """Nothing is pending."""

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            return self._new_experiment(name)
        if found.lifecycle_stage != "active":
            raise BadInputError(
                f"MLflow's experiment {name!r} is deleted", "restore it, or choose another name with --experiment"
            )
        known: str = found.experiment_id
        return known

    def _new_experiment(self, name: str) -> str:
        try:
            made: str = self._client.create_experiment(name)
        except self._mlflow.error:
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            made = found.experiment_id  # another thread or process was faster
        return made

    def _begun(self, experiment: str, first: Tracked) -> tuple[str, set[tuple[str, int]]]:
        """MLflow's run, and the (name, step) of all its metrics."""
        run = re.sub(r"[^A-Za-z0-9_-]", "", first.run)
        found = self._client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{run}'", max_results=1)
        if not found:
            made = self._client.create_run(
                experiment, start_time=_ms(first.created_at), tags={RUN_TAG: run}, run_name=first.name[:MAX_NAME]
            )
            return made.info.run_id, set()
        run_id = found[0].info.run_id
        if not first.ended:
            self._client.update_run(run_id, status="RUNNING")
        names = found[0].data.metrics
        return run_id, {(name, one.step) for name in names for one in self._client.get_metric_history(run_id, name)}

    def _params(self, first: Tracked) -> None:
        """Add the missing parameters only, because MLflow refuses to change a parameter's value."""
        known = self._client.get_run(self.run_id).data.params
        named = {mlflow_name(name): str(value)[:MAX_VALUE] for name, value in first.params.items()}
        params = [self._mlflow.param(name, value) for name, value in named.items() if name not in known]
        for batch in _batches(params, MAX_PARAMS):
            self._client.log_batch(self.run_id, params=batch)


def mlflow_name(name: str) -> str:
    """A name that MLflow accepts: refused characters are replaced, and a digest keeps such names distinct."""
    cleaned = _NOT_IN_NAMES.sub("_", name)[:MAX_NAME]
    if cleaned == name and not name.startswith(("/", ".")) and "/.." not in name and posixpath.normpath(name) == name:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{re.sub(r'[/.]+', '_', cleaned)[: MAX_NAME - 9]}_{digest}"


class _Mlflow:
    """The parts of MLflow in use, imported when needed because the import takes more than a second."""

    def __init__(self) -> None:
        if "mlflow" not in sys.modules:
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # disable usage telemetry
        try:
            entities = importlib.import_module("mlflow.entities")
            self.client: Callable[..., Any] = importlib.import_module("mlflow.tracking").MlflowClient
            self.error: type[Exception] = importlib.import_module("mlflow.exceptions").MlflowException
        except ImportError as error:
            raise ImportError(f"MLflow needs {error.name}: {install_hint('mlflow')}", name=error.name) from error
        self.metric, self.param, self.tag = entities.Metric, entities.Param, entities.RunTag

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn an error of MLflow, or of a store's database or files, into an ``OperatorError``."""
        try:
            yield
        except self._expected() as error:
            raise OperatorError(f"MLflow: {error}", "check --tracking-uri and --experiment") from error

    def _expected(self) -> tuple[type[Exception], ...]:
        """MLflow's error, and those that it passes on when it cannot open a store: file errors and SQLAlchemy's."""
        loaded = sys.modules.get("sqlalchemy.exc")
        return (self.error, OSError) if loaded is None else (self.error, OSError, loaded.SQLAlchemyError)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _batches(items: Iterable[T], size: int) -> Iterator[Sequence[T]]:
    rest = iter(items)
    while batch := list(itertools.islice(rest, size)):
        yield batch
