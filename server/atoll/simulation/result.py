"""The result of a simulation: the model, the history of its rounds, the ledger, the report."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy.typing as npt

from atoll.formats import safetensors
from atoll.operator.errors import BadInputError
from atoll.operator.exports.card import ExportedModel
from atoll.operator.exports.exportable import Exportable, require_trained
from atoll.operator.exports.reporting import write_report
from atoll.operator.history import History, Mode
from atoll.operator.ledger import RunLedger
from atoll.operator.statistics import findings_of, has_findings
from atoll.server.cli.offline import OfflineLedger
from atoll.server.control import BestModel, RunDetail, RunSummary, detail_of
from atoll.server.jobs import parse_job
from atoll.server.rpc import views
from atoll.server.stores import dialects, participants, rounds, runs
from atoll.server.stores.database_place import DATABASE_FILE
from atoll.wire.v1 import control_pb2
from atoll.wire.views import tensor_views

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from sqlalchemy import Connection

    from atoll.operator.models import Steps, Which
    from atoll.server.stores import BlobStore
    from atoll.statistics import Findings
    from atoll.wire.layout import Layout

T = TypeVar("T")
ALL = 1 << 62


@dataclass(frozen=True, repr=False)
class Result(Exportable):
    """A run that has ended.

    Attributes:
        model: the final weights, by name.
        digest: of the final model's bytes; the same as a deployment's.
        layout: names, shapes and element types of the tensors.
        status: finished, or paused if the privacy budget is spent.
        reason: why it ended or paused.
        history: its rounds, without their members; times are virtual.
        seconds: real duration of the simulation.
        virtual_s: duration of the run in virtual time.
        best_model: the weights of the best model, by name; None if the job names no metric or no model was measured.
    """

    model: Mapping[str, npt.NDArray[Any]]
    digest: str
    layout: Layout
    history: History
    seconds: float
    virtual_s: float
    best_model: Mapping[str, npt.NDArray[Any]] | None
    _folder: Path
    _folder_stays: bool = False

    def __post_init__(self) -> None:
        if not self._folder_stays:
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def __repr__(self) -> str:
        run = self.run
        rounds = f"{run.rounds_released}/{run.rounds_total} rounds"
        return f"<Result of run {run.run}: {run.status}, {rounds}, model {self.digest[:16]}>"

    @property
    def run(self) -> RunSummary:
        """The run as a whole."""
        return self.history.run

    @property
    def status(self) -> str:
        """The run's status."""
        return self.run.status

    @property
    def reason(self) -> str:
        """Why the run ended or paused."""
        return self.run.reason

    def detail(self) -> RunDetail:
        """The run with its rounds and all their members, from the server's read model."""
        return read(self._folder, lambda connection: detail_from(connection, self.run.run, members=True))

    def report(self, path: str | Path) -> Path:
        """Write the run's report: one HTML page, the same that ``atoll run report`` makes."""
        findings = self.statistics() if self.has_statistics else None
        write_report(self.detail(), self.layout.size, findings, Path(path), now=self.run.finished_at or 0.0)
        return Path(path)

    def best(self, metric: str | None = None, mode: Mode | None = None) -> BestModel:
        """The best model; see ``History.best``."""
        return self.history.best(metric, mode)

    @property
    def seed(self) -> int | None:
        """The seed from which ``task.seed`` was derived: ``job.seed``, or a drawn one."""
        return self.history.detail.seed

    @property
    def ledger(self) -> RunLedger | None:
        """Every charge of a private run, with its spent epsilon; None for a run without privacy."""
        return read(self._folder, lambda connection: OfflineLedger(connection).run_ledger(self.run.run))

    @property
    def has_statistics(self) -> bool:
        """Whether the run is a finished statistics run."""
        return has_findings(self.history.detail)

    def statistics(self) -> Findings:
        """The figures of a statistics run.

        Raises:
            BadInputError: if the job has no ``[statistics]``, or the run has not finished.
        """
        return findings_of(parse_job(self.history.detail.job_toml), self.model)

    def plot(self, *metrics: str) -> Figure:
        """Draw metrics over the rounds; see ``History.plot``."""
        return self.history.plot(*metrics)

    def _repr_html_(self) -> str:
        return self.history._repr_html_()

    def save(self, path: str | Path) -> Path:
        """Write the final model to a safetensors file."""
        safetensors.write(Path(path), self.layout, (array.data for array in self.model.values()), {"format": "pt"})
        return Path(path)

    def _histories_to_export(self, lost: Callable[[str], object], *, follow: bool) -> Iterable[History]:
        del lost, follow  # it has ended
        return (self.history,)

    def _ledger_to_export(self) -> RunLedger | None:
        return self.ledger

    def _model_to_export(
        self, which: Which, data: Findings | None, steps: Steps
    ) -> tuple[ExportedModel, Iterable[memoryview]]:
        del steps  # it is here already
        detail, best = require_trained(self.history.detail), which == "best"
        if not best and which != "latest":
            raise BadInputError(f"which = {which!r}; a simulation keeps two models", 'choose "latest" or "best"')
        found, blob, round_number = self.model, self.digest, self.run.rounds_released
        if best:
            chosen = self.best()
            found, blob, round_number = self.best_model or self.model, chosen.model_blob, chosen.round
        model = ExportedModel(detail, round_number, self.layout, blob, self.ledger, data, simulated=True)
        return model, (array.data for array in found.values())


def detail_from(connection: Connection, run_id: str, *, members: bool) -> RunDetail:
    """Read a run from its rows."""
    run = runs.get(connection, run_id)
    numbering = views.RoundNumbering.of(run.job_toml)
    answer = control_pb2.GetRunResponse(
        summary=views.run_summary(run),
        job_toml=run.job_toml,
        seed=run.seed,
        best=views.best_model(connection, run),
    )
    for row in rounds.newest(connection, run_id, limit=ALL):
        found = rounds.members_of(connection, run_id, row.round, row.attempt) if members else ()
        names = sorted({member.participant for member in found})
        enrolled = participants.of(connection, names)
        answer.rounds.append(numbering.numbered(views.past_round(row, found, enrolled), row.version))
    return detail_of(answer)


def weights_of(blobs: BlobStore, blob: str, layout: Layout) -> Mapping[str, npt.NDArray[Any]]:
    """The weights of a model, by name, copied into memory."""
    with blobs.open(blob) as opened:
        content = bytearray(opened.read(0, layout.size_bytes))
    return tensor_views(layout, memoryview(content))


def read(folder: Path, work: Callable[[Connection], T]) -> T:
    """A reader of the database of an ended simulation."""
    engine = dialects.reader_engine(dialects.sqlite_url(folder / DATABASE_FILE), connections=1)
    try:
        with engine.connect() as connection, connection.begin():
            return work(connection)
    finally:
        engine.dispose()
