"""An operator's connection to one server: values in, values out."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from atoll.operator import models
from atoll.operator.calls import Calls, Timeouts
from atoll.operator.comparison import Comparison
from atoll.operator.connecting import find_target
from atoll.operator.errors import BadInputError, require_count
from atoll.operator.initial_weights import initial_of
from atoll.operator.ledger import LATEST
from atoll.operator.models import Weights, silent
from atoll.operator.run import Run
from atoll.operator.server_audit import ServerAudit
from atoll.operator.server_ledger import ServerLedger
from atoll.operator.server_operators import ServerOperators
from atoll.operator.server_participants import ServerParticipants
from atoll.operator.server_projects import ServerProjects
from atoll.operator.server_tokens import ServerTokens
from atoll.operator.variants import compared_run, named_by_jobs
from atoll.server.control import LogLine, PrunedStorage, RunSummary, ServerInfo, value_of, values_of
from atoll.server.jobs import Job, parse_job
from atoll.text.printable import printable
from atoll.wire.messages import layout_to_proto
from atoll.wire.v1 import control_pb2

if TYPE_CHECKING:
    from atoll.operator.connecting import Target
    from atoll.operator.models import Steps
    from atoll.server.identity import OperatorCredential

_LEVELS = {
    "info": control_pb2.LOG_LEVEL_INFO,
    "warning": control_pb2.LOG_LEVEL_WARNING,
    "error": control_pb2.LOG_LEVEL_ERROR,
}
LogLevel = Literal["info", "warning", "error"]
_NO_MODEL = 'give the initial weights, or add `initial = "FILE.safetensors"` to the [model] section'


class Operator(ServerLedger, ServerParticipants, ServerTokens, ServerOperators, ServerAudit, ServerProjects):
    """A connection to a server with the rights of an operator; a context manager that closes it.

    ::

        with Operator.connect() as operator:
            run = operator.submit(Job(rounds=50, cohort=Cohort(size=20)), weights)
            for round in run.rounds():
                print(round.round, round.metrics)
            model = run.model("best")

    Raises:
        OperatorError: from every method: unreachable, not permitted, bad input, or refused for another reason.
    """

    def __init__(self, target: Target, timeouts: Timeouts) -> None:
        super().__init__(Calls(target, timeouts))

    @classmethod
    def connect(
        cls,
        server: str | None = None,
        *,
        credential: OperatorCredential | Path | str | None = None,
        data: Path | str | None = None,
        insecure: bool = False,
        project: str | None = None,
        timeouts: Timeouts | None = None,
    ) -> Self:
        """A connection; the first call opens it.

        Args:
            server: ``host:port``; None: ``$ATOLL_SERVER``, or the address in the credential.
            credential: an operator's credential or its file (``operator.json``); None: ``$ATOLL_CREDENTIALS``, or
                ``operator.json`` in the data directory, or in ``~/.config/atoll``.
            data: the server's data directory, if it is on this machine; None: ``$ATOLL_DATA``.
            insecure: plaintext, for a server on this machine that was started with ``--insecure``.
            project: of all calls; empty: all projects in which you have a role; None: ``$ATOLL_PROJECT``, or the one
                chosen with ``atoll project use``.
            timeouts: time limits of operations.

        Raises:
            BadInputError: for an invalid address.
            NotPermittedError: if no credential is found, or it cannot be used.
        """
        given = credential or os.environ.get("ATOLL_CREDENTIALS")
        folder = data or os.environ.get("ATOLL_DATA")
        target = find_target(
            server or os.environ.get("ATOLL_SERVER"),
            Path(given) if isinstance(given, str) else given,
            None if folder is None else Path(folder),
            insecure=insecure,
            project=os.environ.get("ATOLL_PROJECT") if project is None else project,
        )
        return cls(target, timeouts or Timeouts())

    def within(self, project: str) -> Self:
        """Another connection with the same credential for one project; empty: for all of yours."""
        return type(self)(replace(self._calls.target, project=project), self._calls.timeouts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Operator of {self.address}>"

    @property
    def address(self) -> str:
        """host:port of the server."""
        return self._calls.address

    def close(self) -> None:
        """End the connection and every call on it, including those of its runs."""
        self._calls.close()

    def health(self) -> ServerInfo:
        """The server's version, clock, load and free disk space."""
        return value_of(ServerInfo, self._calls.call(self._control.GetServerInfo, control_pb2.GetServerInfoRequest()))

    def submit(
        self,
        job: Job | Path | str,
        initial: Weights | None = None,
        steps: Steps = silent,
    ) -> Run:
        """Send a job with its initial weights and start the run.

        Args:
            job: a job, or the path of a job file.
            initial: the initial weights: arrays by name, or a safetensors file; None: the file that the job names,
                or zeros for a run of statistics.
            steps: called with the progress of the transfer.

        Raises:
            JobFileError: if the job file has problems.
            BadInputError: if weights are missing or cannot be read, or the server refuses the job.
            NotPermittedError: if the credential does not allow it.
        """
        if isinstance(job, Job):
            text, name, own = job.to_toml().encode(), "job.toml", initial_of(job, Path())
        else:
            path = Path(job)
            text, name = _read(path), path.name
            own = initial_of(parse_job(text, str(path)), path.parent)
        weights = own if initial is None else initial
        if weights is None:
            raise BadInputError(f"{name}: there are no initial weights", _NO_MODEL)
        with models.opened(weights) as content:
            blob = models.upload(self._calls, content, steps)
            request = control_pb2.SubmitRunRequest(
                job_toml=text, file_name=name, layout=layout_to_proto(content.layout), initial_blob=blob
            )
        answer = self._calls.call(self._control.SubmitRun, request, self._calls.timeouts.submit_s)
        return Run(self._calls, answer.run, [printable(warning) for warning in answer.warnings])

    def run(self, run: str = LATEST) -> Run:
        """A run by its id or name, or the newest one; a given id is not looked up.

        Raises:
            BadInputError: if there is no run yet, or several runs have the name.
        """
        return Run(self._calls, self.run_named(run))

    def runs(self, limit: int | None = None) -> Iterator[RunSummary]:
        """The runs, the newest first, at most ``limit`` of them (None: all); page by page."""
        require_count("limit", limit or 0)
        return itertools.islice(self._runs(limit or 0), limit)

    def compare(self, runs: Iterable[Run | str], *, separate: bool = False) -> Comparison:
        """Compare runs: differences of their jobs, metrics, time, bytes sent, epsilon.

        Args:
            runs: the runs, or their ids.
            separate: whether runs whose jobs differ only in their seeds are separate variants; otherwise they are
                repeats.

        Raises:
            BadInputError: if there are none.
        """
        compared, jobs = [], []
        for run in (self.run(one) if isinstance(one, str) else one for one in runs):
            detail = run.detail(members=True)
            ended_at = detail.run.finished_at
            seconds = None if ended_at is None else ended_at - detail.run.created_at
            compared.append(compared_run(detail, self.run_ledger(run.id), seconds=seconds))
            jobs.append(detail.job_toml)
        if not compared:
            raise BadInputError("there is no run to compare", "name at least one")
        return Comparison(named_by_jobs(compared, jobs, separate=separate))

    def log_lines(self, limit: int | None = None, *, level: LogLevel = "info") -> Iterator[LogLine]:
        """The newest lines of the server's log that it keeps, newest first.

        Args:
            limit: maximum number of lines; None: all that are kept.
            level: minimum severity.
        """
        require_count("limit", limit or 0)
        if level not in _LEVELS:
            raise BadInputError(f"level = {level!r}; allowed are {', '.join(_LEVELS)}")
        request = control_pb2.ListLogLinesRequest(limit=limit or 0, level=_LEVELS[level])
        answers = self._calls.pages(self._control.ListLogLines, request)
        return itertools.islice((line for answer in answers for line in values_of(LogLine, answer.lines)), limit)

    def prune(self, *, dry_run: bool = False) -> tuple[PrunedStorage, ...]:
        """Make the server remove unneeded data, or with ``dry_run`` list it."""
        request = control_pb2.PruneStorageRequest(dry_run=dry_run)
        return values_of(PrunedStorage, self._calls.call(self._control.PruneStorage, request).pruned)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror or error}") from error
