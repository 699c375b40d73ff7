"""An operator's connection to one server: values in, values out."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from atoll.operator import models
from atoll.operator.calls import Calls, Timeouts
from atoll.operator.comparison import Comparison
from atoll.operator.connecting import find_target
from atoll.operator.errors import BadInputError, require_count
from atoll.operator.ledger import LATEST
from atoll.operator.models import Weights, silent
from atoll.operator.naming import participant_called
from atoll.operator.run import Run
from atoll.operator.server_audit import ServerAudit
from atoll.operator.server_ledger import ServerLedger
from atoll.operator.server_projects import ServerProjects
from atoll.operator.variants import compared_run, named_by_jobs
from atoll.server.control import (
    LogLine,
    Myself,
    NewTokens,
    OperatorCertificate,
    OperatorSummary,
    ParticipantSummary,
    PopulationSummary,
    PrunedStorage,
    RevokedOperator,
    RunSummary,
    ServerInfo,
    TokenSummary,
    value_of,
    values_of,
)
from atoll.server.identity import KeyWithRequest, OperatorCredential
from atoll.server.jobs import Job, JobSpec, first_model, parse_job
from atoll.text.printable import printable
from atoll.wire.messages import layout_to_proto
from atoll.wire.v1 import control_pb2, enrolment_pb2

if TYPE_CHECKING:
    from atoll.operator.connecting import Target
    from atoll.operator.models import Steps

DAY_S = 86_400.0
_KINDS = {
    "edge": enrolment_pb2.PARTICIPANT_KIND_EDGE,
    "silo": enrolment_pb2.PARTICIPANT_KIND_SILO,
    "aggregator": enrolment_pb2.PARTICIPANT_KIND_AGGREGATOR,
}
_LEVELS = {
    "info": control_pb2.LOG_LEVEL_INFO,
    "warning": control_pb2.LOG_LEVEL_WARNING,
    "error": control_pb2.LOG_LEVEL_ERROR,
}
_ROLES = {
    "viewer": control_pb2.OPERATOR_ROLE_VIEWER,
    "operator": control_pb2.OPERATOR_ROLE_OPERATOR,
    "privacy_officer": control_pb2.OPERATOR_ROLE_PRIVACY_OFFICER,
    "administrator": control_pb2.OPERATOR_ROLE_ADMINISTRATOR,
}
LogLevel = Literal["info", "warning", "error"]
OperatorRoleName = Literal["viewer", "operator", "privacy_officer", "administrator"]
_NO_MODEL = 'give the initial weights, or add `initial = "FILE.safetensors"` to the [model] section'


@dataclass(frozen=True)
class NewOperator:
    """A new operator's credential, with the only copy of its key, and its expiry (epoch seconds)."""

    credential: OperatorCredential
    expires_at: float


class Operator(ServerLedger, ServerAudit, ServerProjects):
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

    def participants(self, *, connected: bool = False, organisation: str = "") -> Iterator[ParticipantSummary]:
        """All enrolled participants, or those that are connected, or of one organisation; page by page."""
        request = control_pb2.ListParticipantsRequest(connected=connected, organisation=organisation)
        for answer in self._calls.pages(self._control.ListParticipants, request):
            yield from values_of(ParticipantSummary, answer.participants)

    def participant_named(self, text: str) -> str:
        """The id of a participant: by its id, by an organisation or a label (``site=ward-7``) that only it has.

        Raises:
            BadInputError: if several participants have this name; lists them.
        """
        return participant_called(text, self.participants)

    def revoke(self, participant: str, reason: str = "") -> ParticipantSummary:
        """Revoke a participant, at once and permanently; ``participant`` is its id."""
        request = control_pb2.RevokeParticipantRequest(participant=participant, reason=reason)
        return value_of(ParticipantSummary, self._calls.call(self._control.RevokeParticipant, request).participant)

    def make_tokens(
        self,
        count: int = 1,
        *,
        organisation: str = "default",
        kind: Literal["edge", "silo", "aggregator"] = "edge",
        lifetime_s: float = DAY_S,
        hosts: Sequence[str] = (),
        through: str = "",
    ) -> NewTokens:
        """Create one-time join tokens: each admits one participant or aggregator. The server cannot show them again.

        Args:
            count: number of tokens.
            organisation: of their holders.
            kind: of their holders.
            lifetime_s: seconds for which they are valid.
            hosts: for an aggregator: host names and IP addresses to which its participants connect.
            through: id or organisation of the participants' aggregator, which must be connected; empty: they connect to
                the server.
        """
        require_count("count", count)
        if kind not in _KINDS:
            raise BadInputError(f"kind = {kind!r}; allowed are {' and '.join(_KINDS)}")
        request = control_pb2.CreateTokenRequest(
            organisation=organisation,
            kind=_KINDS[kind],
            lifetime_s=lifetime_s,
            count=count,
            hosts=hosts,
            through=through,
        )
        return value_of(NewTokens, self._calls.call(self._control.CreateToken, request))

    def tokens(self, *, unused: bool = False) -> Iterator[TokenSummary]:
        """All join tokens, or the unused ones, the newest first, without their secrets; page by page."""
        request = control_pb2.ListTokensRequest(unused=unused)
        for answer in self._calls.pages(self._control.ListTokens, request):
            yield from values_of(TokenSummary, answer.tokens)

    def void_tokens(self, token_ids: Sequence[str] = (), *, created_by: str = "") -> int:
        """Void unused join tokens, which then admit no one. Participants that used theirs stay.

        Args:
            token_ids: of the tokens, as ``tokens`` lists them.
            created_by: the operator whose tokens are all voided; instead of ``token_ids``.

        Returns:
            The number of tokens that were still valid; the others were used or expired.
        """
        request = control_pb2.VoidTokensRequest(token_ids=token_ids, created_by=created_by)
        return self._calls.call(self._control.VoidTokens, request).voided

    def make_operator(
        self,
        name: str,
        lifetime_s: float = 90 * DAY_S,
        *,
        role: OperatorRoleName | None = None,
        organisation: str = "",
    ) -> NewOperator:
        """Create a credential for an operator; under your own name it renews yours. The key is generated here.

        Args:
            name: of the operator.
            lifetime_s: validity of the credential in seconds, at most 90 days.
            role: of a new operator, in this connection's project or, without one, in all; None: ``operator``, or yours
                for your own name.
            organisation: the only one for whose participants and join tokens the role holds; empty: all.
        """
        made = KeyWithRequest.make()
        request = control_pb2.CreateOperatorRequest(
            name=name,
            csr_pem=made.csr_pem,
            lifetime_s=lifetime_s,
            role=control_pb2.OPERATOR_ROLE_UNSPECIFIED if role is None else _role_number(role),
            organisation=organisation,
        )
        found = value_of(OperatorCertificate, self._calls.call(self._control.CreateOperator, request))
        credential = OperatorCredential(
            name=name,
            address=self.address,
            ca_certificate=found.ca_certificate_pem.decode(),
            certificate=found.certificate_pem.decode(),
            key=made.key_pem.decode(),
        )
        return NewOperator(credential, found.expires_at)

    def operators(self) -> tuple[OperatorSummary, ...]:
        """All operators, by name."""
        answer = self._calls.call(self._control.ListOperators, control_pb2.ListOperatorsRequest())
        return values_of(OperatorSummary, answer.operators)

    def set_operator_role(self, name: str, role: OperatorRoleName | None, *, organisation: str = "") -> OperatorSummary:
        """Change an operator's role in this connection's project or, without one, in all; effective from its next call.

        Args:
            name: of the operator.
            role: the role; None: none in this project any more.
            organisation: the only one for whose participants and join tokens the role holds; empty: all.
        """
        number = control_pb2.OPERATOR_ROLE_UNSPECIFIED if role is None else _role_number(role)
        request = control_pb2.SetOperatorRoleRequest(name=name, role=number, organisation=organisation)
        return value_of(OperatorSummary, self._calls.call(self._control.SetOperatorRole, request).operator)

    def whoami(self) -> Myself:
        """The identity that the server sees, and the actions that it allows."""
        return value_of(Myself, self._calls.call(self._control.WhoAmI, control_pb2.WhoAmIRequest()))

    def revoke_operator(self, name: str, reason: str = "") -> RevokedOperator:
        """Revoke an operator's access at once."""
        request = control_pb2.RevokeOperatorRequest(name=name, reason=reason)
        return value_of(RevokedOperator, self._calls.call(self._control.RevokeOperator, request))

    def limit_population(
        self,
        population: str,
        limit: tuple[float, float] | None,
        *,
        create: bool = False,
        unit: Literal["participant", "row"] = "participant",
    ) -> PopulationSummary:
        """Limit the total spending of a population's runs.

        Args:
            population: its name.
            limit: (epsilon, delta); None removes the limit.
            create: whether to create a population that has no run yet.
            unit: privacy unit of a created population.
        """
        epsilon, delta = (None, None) if limit is None else limit
        adjacency = "add_remove_row" if unit == "row" else "add_remove"
        request = control_pb2.LimitPopulationRequest(
            population=population, epsilon=epsilon, delta=delta, adjacency=adjacency if create else ""
        )
        answer = self._calls.call(self._control.LimitPopulation, request, self._calls.timeouts.ledger_s)
        return value_of(PopulationSummary, answer.population)

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


def _role_number(role: str) -> control_pb2.OperatorRole.ValueType:
    if role not in _ROLES:
        raise BadInputError(f"role = {role!r}; allowed are {', '.join(_ROLES)}")
    return _ROLES[role]


def initial_of(spec: JobSpec, folder: Path) -> Weights | None:
    """The initial weights of a run of this job; None if the job does not name any.

    Args:
        spec: the job.
        folder: to which the path of its file of initial weights is relative.
    """
    if spec.statistics is not None:
        return first_model(spec.statistics)
    return initial_file(spec, folder)


def initial_file(spec: JobSpec, folder: Path) -> Path | None:
    """The file of initial weights that a job names, relative to ``folder``; None if it names none."""
    return None if spec.model is None else folder / spec.model.initial


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror or error}") from error
