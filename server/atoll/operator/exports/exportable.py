"""Exports shared by deployed and simulated runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.operator.errors import BadInputError
from atoll.operator.exports.folder import export_folder, require_free
from atoll.operator.exports.mlflow import DEFAULT_EXPERIMENT
from atoll.operator.exports.sending import to_mlflow, to_tensorboard
from atoll.operator.exports.tracked import tracked
from atoll.operator.models import silent
from atoll.operator.run_job import has_secret_draw, job_keys

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from atoll.operator.exports.card import ExportedModel
    from atoll.operator.exports.tracked import Tracked
    from atoll.operator.history import History
    from atoll.operator.ledger import RunLedger
    from atoll.operator.models import Steps, Which
    from atoll.server.control import RunDetail
    from atoll.statistics import Findings


def _ignore(text: str) -> None:
    """Ignores interruptions."""
    del text


class Exportable(ABC):
    """A run whose model, metrics and settings can be exported to other tools (docs/exports.md)."""

    def export(
        self, folder: Path | str, which: Which = "latest", *, data: Findings | None = None, steps: Steps = silent
    ) -> Path:
        """Write a model with its model card into a folder for Hugging Face, MLflow and people.

        Args:
            folder: must not exist yet, or must be empty.
            which: which model; of a simulation ``"latest"`` or ``"best"``.
            data: statistics of the data for the card, such as ``operator.run("overview").statistics()``.
            steps: called with the progress.

        Raises:
            BadInputError: if the folder is not empty or cannot be written, if there is no such model, or for a run of
                statistics.
        """
        require_free(Path(folder))
        model, chunks = self._model_to_export(which, data, steps)
        export_folder(model, chunks, Path(folder))
        return Path(folder)

    def to_tensorboard(
        self, logdir: Path | str, *, follow: bool = False, lost: Callable[[str], object] = _ignore
    ) -> Path:
        """Write curves and settings for TensorBoard; returns the run's own folder below ``logdir``.

        Args:
            logdir: the folder for ``tensorboard --logdir``.
            follow: whether to go on until the run has ended.
            lost: called with a sentence when the connection breaks.

        Raises:
            BadInputError: if the folder cannot be written.
            ImportError: if tensorboard is not installed (the extra ``tensorboard``).
        """
        return to_tensorboard(self._states(lost, follow=follow), Path(logdir))

    def to_mlflow(
        self,
        experiment: str = DEFAULT_EXPERIMENT,
        *,
        tracking_uri: str | None = None,
        follow: bool = False,
        lost: Callable[[str], object] = _ignore,
    ) -> str:
        """Write the run to MLflow, with its model, card and report once it has ended; returns the id of MLflow's run.

        An MLflow run with the same tag ``atoll.run`` is updated.

        Args:
            experiment: name of the experiment, which is created if missing.
            tracking_uri: the tracking server or store; None: as MLflow finds it.
            follow: whether to go on until the run has ended.
            lost: called with a sentence when the connection breaks.

        Raises:
            OperatorError: if MLflow refuses or cannot be reached.
            ImportError: if MLflow is not installed (the extra ``mlflow``).
        """
        states = self._states(lost, follow=follow)
        return to_mlflow(states, self._write_artifacts, experiment=experiment, tracking_uri=tracking_uri)

    @abstractmethod
    def report(self, path: Path | str) -> Path:
        """Write the run's report: one HTML page."""

    @abstractmethod
    def _histories_to_export(self, lost: Callable[[str], object], *, follow: bool) -> Iterable[History]:
        """The complete history now, and with ``follow`` whenever rounds have ended, until the run ends."""

    @abstractmethod
    def _ledger_to_export(self) -> RunLedger | None:
        """A private run's charges."""

    @abstractmethod
    def _model_to_export(
        self, which: Which, data: Findings | None, steps: Steps
    ) -> tuple[ExportedModel, Iterable[Buffer]]:
        """A model and its bytes."""

    def _states(self, lost: Callable[[str], object], *, follow: bool) -> Iterator[Tracked]:
        for history in self._histories_to_export(lost, follow=follow):
            # Composing the ledger of a long run takes seconds, so it is read once.
            ledger = self._ledger_to_export() if history.run.ended or not follow else None
            yield tracked(history.detail, None if ledger is None else ledger.spending)

    def _write_artifacts(self, folder: Path) -> None:
        """The model, and the report, if the extra ``server`` is installed.

        A statistics run has no model. A run with a secret draw has no report, because a report names the members.
        """
        history = next(iter(self._histories_to_export(_ignore, follow=False)))
        if trains(history.detail):
            self.export(folder / "model")
        if has_secret_draw(history.detail):
            return
        try:
            self.report(folder / "report.html")
        except ImportError:
            return


def trains(detail: RunDetail) -> bool:
    """Whether a run trains a model; a statistics run does not."""
    return all(key.partition(".")[0] != "statistics" for key in job_keys(detail.job_toml))


def require_trained(detail: RunDetail) -> RunDetail:
    """A run that trains a model.

    Raises:
        BadInputError: for a run of statistics.
    """
    if not trains(detail):
        raise BadInputError(
            f"run {detail.run.run} is one of statistics and has no model", "`atoll run stats` writes its figures"
        )
    return detail
