"""One run: its state, rounds and models, and the calls that control it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.operator import models
from atoll.operator.completing import completed
from atoll.operator.errors import MAX_COUNT, OperatorError, RunFailedError, require_count
from atoll.operator.exports.card import ExportedModel
from atoll.operator.exports.exportable import Exportable, require_trained
from atoll.operator.exports.reporting import write_report
from atoll.operator.following import MONTH_S, follow, follow_async
from atoll.operator.history import ENDED_PHASES, History, Mode, Rounds
from atoll.operator.html import error_page, page
from atoll.operator.models import Model, ModelRef, Which, silent
from atoll.operator.notebook import screen
from atoll.operator.run_job import job_of
from atoll.operator.server_ledger import ServerLedger
from atoll.operator.statistics import findings_of, has_findings
from atoll.server.control import (
    BestModel,
    Progress,
    PrunedStorage,
    RoundSummary,
    RunDetail,
    RunSummary,
    detail_of,
    value_of,
    values_of,
)
from atoll.server.jobs import Job
from atoll.wire.messages import layout_from_proto
from atoll.wire.v1 import control_pb2

if TYPE_CHECKING:
    from atoll.operator.calls import Calls
    from atoll.operator.ledger import RunLedger
    from atoll.operator.models import Steps
    from atoll.statistics import Findings

HISTORY_INTERVAL_S = 0.5
"""Minimum seconds between two fetches of the displayed rounds."""


def _ignore(text: str) -> None:
    """Ignores interruptions."""
    del text


class Run(Exportable):
    """A run on the server. Every method asks the server; shows its state in a notebook.

    Attributes:
        id: its identifier.
        warnings: the server's reasons why a good result is unlikely, if this run was submitted here.

    Raises:
        OperatorError: from every method: unreachable, not permitted, bad input, or refused for another reason.
    """

    def __init__(self, calls: Calls, run: str, warnings: Sequence[str] = ()) -> None:
        self._calls = calls
        self.id = run
        self.warnings = tuple(warnings)

    def __repr__(self) -> str:
        return f"<Run {self.id} on {self._calls.address}>"

    def _repr_html_(self) -> str:
        try:
            return page(self.detail())
        except OperatorError as error:
            return error_page(self.id, error)

    def summary(self) -> RunSummary:
        """The run as a whole: status, rounds released, why it ended."""
        return self.detail(since=MAX_COUNT).run

    def detail(self, *, members: bool = False, only: int | None = None, since: int = 0) -> RunDetail:
        """The run with its rounds and its job.

        Args:
            members: whether the rounds list their members.
            only: only the attempts at this round.
            since: only the rounds from this number on.
        """
        require_count("only", only or 0)
        require_count("since", since)
        request = control_pb2.GetRunRequest(run=self.id, members=members, round=only, since=since)
        return detail_of(self._calls.call(self._calls.control.GetRun, request))

    def history(self, *, members: bool = False, complete: bool = False) -> History:
        """The rounds so far, with curves, rows and files.

        Args:
            members: whether the rounds list their members.
            complete: whether to fetch the data of a long run that one answer omits, with one more call for each round:
                rounds before the newest 1000 attempts, and members beyond the newest 10,000.
        """
        found = self.detail(members=members)
        if complete:
            found = completed(found, lambda number: self.detail(members=members, only=number), members=members)
        return History(found)

    def follow(
        self, timeout_s: float = MONTH_S, lost: Callable[[str], object] = _ignore, *, pace_s: float = 0.0
    ) -> Iterator[Progress]:
        """The run now and at every change until it has ended; continues when a lost server comes back.

        Args:
            timeout_s: how long to follow.
            lost: called with a sentence when the connection breaks.
            pace_s: minimum seconds between two changes, at most 10, to reduce the server's load: changes in between are
            merged. 0: every change.

        Raises:
            TimedOutError: if it has not ended in time.
            UnreachableError: if the server stays unreachable.
        """
        return follow(self._calls, self.id, timeout_s, lost, pace_s=pace_s)

    def follow_async(
        self, timeout_s: float = MONTH_S, lost: Callable[[str], object] = _ignore, *, pace_s: float = 0.0
    ) -> AsyncIterator[Progress]:
        """As ``follow``, for ``async for``."""
        return follow_async(self._calls, self.id, timeout_s, lost, pace_s=pace_s)

    def rounds(self, timeout_s: float = MONTH_S) -> Iterator[RoundSummary]:
        """Each attempt at a round once it is released or abandoned, until the run has ended. Raises as ``follow``."""
        known, given = Rounds(lambda since: self.detail(since=since)), 0
        at: object = None
        for progress in self.follow(timeout_s):
            now = _position(progress)
            if now == at and not progress.run.ended:
                continue
            at = now
            ended = [item for item in known.refreshed().rounds if item.phase in ENDED_PHASES]
            yield from ended[given:]
            given = max(given, len(ended))

    def wait(self, timeout_s: float = MONTH_S, *, check: bool = True) -> RunSummary:
        """Wait until the run has ended.

        Args:
            timeout_s: how long to wait.
            check: whether a run that failed or was cancelled is an error.

        Raises:
            RunFailedError: if it did not finish and ``check`` is true.
            TimedOutError: if it has not ended in time.
        """
        last = None
        for progress in self.follow(timeout_s):
            last = progress.run
        if last is None:
            raise RuntimeError("following a run yields at least its current state")
        return checked(last) if check else last

    def histories(
        self, timeout_s: float = MONTH_S, lost: Callable[[str], object] = _ignore, *, complete: bool = False
    ) -> Iterator[History]:
        """The history now, when rounds have ended, and when the run has. Raises as ``follow``.

        Args:
            timeout_s: how long to follow.
            lost: called with a sentence when the connection breaks.
            complete: as for ``history``.
        """
        known = Rounds(lambda since: self.detail(since=since) if since else self.history(complete=complete).detail)
        at, next_at = None, 0.0
        for progress in self.follow(timeout_s, lost):
            now = _position(progress)
            if progress.run.ended or next_at == 0.0 or (now != at and time.monotonic() >= next_at):
                at, next_at = now, time.monotonic() + HISTORY_INTERVAL_S
                yield History(known.refreshed())

    def show(self, timeout_s: float = MONTH_S) -> History:
        """Show the run's progress until it has ended: redrawn in a notebook, a line for each round elsewhere."""
        shown, last = screen(), None
        for last in self.histories(timeout_s):
            shown.show(last)
        return last or self.history()

    def ledger(self) -> RunLedger | None:
        """Every charge of a private run, with its spent epsilon; None for a run without privacy."""
        return ServerLedger(self._calls).run_ledger(self.id)

    def report(self, path: Path | str) -> Path:
        """Write the run's report: one self-contained HTML page.

        Raises:
            BadInputError: if the file cannot be written.
            ImportError: if matplotlib or jinja2 is not installed (the extra ``server``).
        """
        detail, elements = self.detail(members=True), self.model_ref().layout.size
        write_report(detail, elements, self.statistics() if has_findings(detail) else None, Path(path))
        return Path(path)

    def pause(self) -> RunSummary:
        """Pause after the current round."""
        return self._changed(self._calls.control.PauseRun, control_pb2.PauseRunRequest(run=self.id))

    def resume(self) -> RunSummary:
        """Resume a paused run."""
        return self._changed(self._calls.control.ResumeRun, control_pb2.ResumeRunRequest(run=self.id))

    def cancel(self, reason: str = "") -> RunSummary:
        """End the run now; released models stay. Participants get the reason."""
        return self._changed(self._calls.control.CancelRun, control_pb2.CancelRunRequest(run=self.id, reason=reason))

    def extend(self, rounds: int) -> RunSummary:
        """Extend this run, which must have finished or been cancelled, by ``rounds`` from its newest model.

        Args:
            rounds: train rounds, 1 or more, beyond those that are released.

        Raises:
            BadInputError: if the number is out of range, or the run is private or one of statistics.
            OperatorError: if it has not ended, has failed, or the server no longer keeps the data needed to continue.
        """
        require_count("rounds", rounds, least=1)
        request = control_pb2.ExtendRunRequest(run=self.id, rounds=rounds)
        return self._changed(self._calls.control.ExtendRun, request)

    def delete(self) -> tuple[PrunedStorage, ...]:
        """Delete the run permanently; it must have ended. Returns a summary of the removed data."""
        request = control_pb2.DeleteRunRequest(run=self.id)
        answer = self._calls.call(self._calls.control.DeleteRun, request, self._calls.timeouts.delete_s)
        return values_of(PrunedStorage, answer.removed)

    def model(self, which: Which = "latest", steps: Steps = silent) -> Model:
        """Fetch a released model into memory, verified.

        Args:
            which: which model.
            steps: called with the progress.
        """
        ref = self.model_ref(which)
        return Model(ref, b"".join(models.fetched(self._calls, ref, steps)))

    def save_model(self, path: Path | str, which: Which = "latest", steps: Steps = silent) -> ModelRef:
        """Fetch a released model into a safetensors file, written atomically; holds a few chunks at a time.

        Raises:
            BadInputError: if the file cannot be written.
        """
        ref = self.model_ref(which)
        models.write(Path(path), ref.layout, models.fetched(self._calls, ref, steps))
        return ref

    def model_ref(self, which: Which = "latest") -> ModelRef:
        """Layout and blob of a released model, without its bytes."""
        number = self.best().round if which == "best" else which
        require_count("which", number if isinstance(number, int) else 0)
        request = control_pb2.GetRunModelRequest(
            run=self.id, round=number if isinstance(number, int) else None, averaged=which == "averaged"
        )
        answer = self._calls.call(self._calls.control.GetRunModel, request)
        return ModelRef(layout_from_proto(answer.model.layout), answer.model.blob, answer.round)

    def best(self, metric: str | None = None, mode: Mode | None = None) -> BestModel:
        """The best model so far; see ``History.best``. Fetch it with ``model(run.best(...).round)``.

        The job's own metric decides over all rounds, another metric over the newest 1000 attempts at rounds.
        """
        return History(self.detail()).best(metric, mode)

    def job(self) -> Job:
        """The run's job, with the seed that the server drew for it.

        Raises:
            BadInputError: if this version cannot read it.
        """
        detail = self.detail(since=MAX_COUNT)
        return Job.of(job_of(detail).seeded(detail.seed))

    def statistics(self) -> Findings:
        """The figures of a finished statistics run.

        Raises:
            BadInputError: if it is not a statistics run, has not finished, or its rounds counted different rows.
        """
        return findings_of(self.job(), self.model())

    def _histories_to_export(self, lost: Callable[[str], object], *, follow: bool) -> Iterable[History]:
        return self.histories(lost=lost, complete=True) if follow else (self.history(complete=True),)

    def _ledger_to_export(self) -> RunLedger | None:
        return self.ledger()

    def _model_to_export(
        self, which: Which, data: Findings | None, steps: Steps
    ) -> tuple[ExportedModel, Iterable[bytes]]:
        detail, ref = require_trained(self.history(complete=True).detail), self.model_ref(which)
        model = ExportedModel(detail, ref.round, ref.layout, ref.blob, self.ledger(), data)
        return model, models.fetched(self._calls, ref, steps)

    def _changed(self, method: Callable[..., _Changed], request: object) -> RunSummary:
        return value_of(RunSummary, self._calls.call(method, request).summary)


_Changed = (
    control_pb2.PauseRunResponse
    | control_pb2.ResumeRunResponse
    | control_pb2.CancelRunResponse
    | control_pb2.ExtendRunResponse
)


def checked(run: RunSummary) -> RunSummary:
    """A run that finished.

    Raises:
        RunFailedError: if it failed or was cancelled.
    """
    if run.status != "finished":
        raise RunFailedError(f"run {run.run} {run.status}: {run.reason or 'no reason was given'}")
    return run


def _position(progress: Progress) -> tuple[int, int] | None:
    return None if progress.round is None else (progress.round.round, progress.round.attempt)
