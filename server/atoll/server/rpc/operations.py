"""Every operator method: the roles that may call it, and its entry in the audit log.

A method that is missing from ``OPERATIONS`` is refused (``supervision``), so a new one cannot be forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from atoll.server.access.role_checks import MAY_READ_MODELS
from atoll.server.identity import EVERY_ROLE, OperatorRole
from atoll.wire.v1 import control_pb2

SERVICE = "/atoll.wire.v1.ControlService"

OPERATOR_ROLES: Mapping[int, OperatorRole] = MappingProxyType(
    {
        control_pb2.OPERATOR_ROLE_VIEWER: OperatorRole.VIEWER,
        control_pb2.OPERATOR_ROLE_OPERATOR: OperatorRole.OPERATOR,
        control_pb2.OPERATOR_ROLE_PRIVACY_OFFICER: OperatorRole.PRIVACY_OFFICER,
        control_pb2.OPERATOR_ROLE_ADMINISTRATOR: OperatorRole.ADMINISTRATOR,
    }
)
ROLE_NUMBERS = MappingProxyType(
    {role: control_pb2.OperatorRole.ValueType(number) for number, role in OPERATOR_ROLES.items()}
)


@dataclass(frozen=True)
class About:
    """The subject of an action, and further values."""

    subject: str = ""
    detail: str = ""


Describe = Callable[[Any, Any], About | None]
"""Describes a request and its answer, either of which may be None, for the log; None if nothing changed."""


class Concern(StrEnum):
    """The kind of subject of a method, from which ``scoping`` finds its project."""

    SERVER = "server"
    """The whole server: for operators with a role in all projects."""
    PROJECT = "project"
    """Lists or creates things in the project that the call names."""
    RUN = "run"
    """The run that the request names."""
    PARTICIPANT = "participant"
    """The participant that the request names."""
    POPULATION = "population"
    """The population that the request names, or all populations of the project if it names none."""
    CHARGES = "charges"
    """The run or population that the request names, or both."""
    OPERATORS = "operators"
    """Operators; ``access.operators`` checks the caller's permissions."""
    SELF = "self"
    """The caller itself, and information for every operator; the handler limits it to what the caller may see."""


@dataclass(frozen=True)
class Operation:
    """One method.

    Attributes:
        concern: its kind of subject.
        roles: the roles that may call it.
        action: its name in the audit log; empty for methods that only read.
        describe: see ``Describe``.
        begins: whether it begins something new, which a closed project refuses.
        for_organisation: whether operators whose role is for one organisation may call it; its handler is then limited
            to that organisation.
    """

    concern: Concern
    roles: frozenset[OperatorRole]
    action: str = ""
    describe: Describe = lambda _request, _answer: About()
    begins: bool = False
    for_organisation: bool = False


def _of_run(request: Any, _: Any) -> About:
    return About(request.run)


def _submitted(request: Any, answer: Any) -> About:
    return About("" if answer is None else answer.run, request.file_name)


def _uploaded(_: Any, answer: Any) -> About:
    return About("" if answer is None else answer.blob)


def _model(request: Any, answer: Any) -> About:
    asked = str(request.round) if request.HasField("round") else "newest"
    version = asked if answer is None else str(answer.round)
    return About(request.run, f"model {version}{', averaged' if request.averaged else ''}")


def _tokens(request: Any, _: Any) -> About:
    return About(request.organisation, f"{request.count} for {request.lifetime_s:g} s")


def _voided(request: Any, answer: Any) -> About:
    which = f"made by {request.created_by}" if request.created_by else ", ".join(request.token_ids[:_NAMED])
    more = len(request.token_ids) - _NAMED
    return About(which + (f" and {more} more" if more > 0 else ""), "" if answer is None else f"{answer.voided} void")


def _pruned(request: Any, answer: Any) -> About | None:
    if request.dry_run:
        return None
    return About("", "" if answer is None else f"{sum(one.count for one in answer.pruned)} things")


def _exported(request: Any, _: Any) -> About | None:
    """Describes an export, which is a page of a population's charges; None for the newest charges or a run's."""
    if not request.population or request.newest:
        return None
    return About(request.population, f"charges from {request.start}")


def _limited(request: Any, _: Any) -> About:
    given = request.HasField("epsilon") and request.HasField("delta")
    words = f"epsilon {request.epsilon:g} at delta {request.delta:g}" if given else "no limit"
    return About(request.population, words)


def _created(request: Any, _: Any) -> About:
    return About(request.name, OPERATOR_ROLES.get(request.role, "") + _limit(request))


def _granted(request: Any, _: Any) -> About:
    return About(request.name, OPERATOR_ROLES.get(request.role, "none") + _limit(request))


def _limit(request: Any) -> str:
    return f" for {request.organisation}" if request.organisation else ""


def quota_words(request: Any) -> str:
    """The quotas of a request, such as ``runs 2``."""
    return ", ".join(f"{field.name} {value}" for field, value in request.quota.ListFields())


_NAMED = 3
"""Maximum number of tokens that an entry names."""
_RUNS = frozenset({OperatorRole.OPERATOR, OperatorRole.ADMINISTRATOR})
_STOPPING = _RUNS | {OperatorRole.PRIVACY_OFFICER}
_PRIVACY = frozenset({OperatorRole.PRIVACY_OFFICER, OperatorRole.ADMINISTRATOR})
_PEOPLE = frozenset({OperatorRole.ADMINISTRATOR})
OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "UploadModel": Operation(Concern.PROJECT, _RUNS, "model.upload", _uploaded, begins=True),
        "SubmitRun": Operation(Concern.PROJECT, _RUNS, "run.submit", _submitted, begins=True),
        "ListRuns": Operation(Concern.PROJECT, EVERY_ROLE),
        "GetRun": Operation(Concern.RUN, EVERY_ROLE),
        "WatchRun": Operation(Concern.RUN, EVERY_ROLE),
        "PauseRun": Operation(Concern.RUN, _STOPPING, "run.pause", _of_run),
        "ResumeRun": Operation(Concern.RUN, _RUNS, "run.resume", _of_run),
        "CancelRun": Operation(
            Concern.RUN, _STOPPING, "run.cancel", lambda request, _: About(request.run, request.reason)
        ),
        "ExtendRun": Operation(
            Concern.RUN,
            _RUNS,
            "run.extend",
            lambda request, _: About(request.run, f"{request.rounds} rounds"),
            begins=True,
        ),
        "DeleteRun": Operation(Concern.RUN, _RUNS, "run.delete", _of_run),
        "GetRunModel": Operation(Concern.RUN, MAY_READ_MODELS, "model.read", _model),
        "CreateToken": Operation(Concern.PROJECT, _RUNS, "token.create", _tokens, begins=True, for_organisation=True),
        "ListTokens": Operation(Concern.PROJECT, EVERY_ROLE, for_organisation=True),
        "VoidTokens": Operation(Concern.PROJECT, _RUNS, "token.void", _voided, for_organisation=True),
        "ListParticipants": Operation(Concern.PROJECT, EVERY_ROLE, for_organisation=True),
        "RevokeParticipant": Operation(
            Concern.PARTICIPANT,
            _RUNS,
            "participant.revoke",
            lambda request, _: About(request.participant, request.reason),
            for_organisation=True,
        ),
        "CreateOperator": Operation(Concern.OPERATORS, EVERY_ROLE, "operator.create", _created, for_organisation=True),
        "SetOperatorRole": Operation(Concern.OPERATORS, _PEOPLE, "operator.role", _granted),
        "WhoAmI": Operation(Concern.SELF, EVERY_ROLE, for_organisation=True),
        "ListOperators": Operation(Concern.OPERATORS, EVERY_ROLE),
        "RevokeOperator": Operation(
            Concern.OPERATORS, _PEOPLE, "operator.revoke", lambda request, _: About(request.name, request.reason)
        ),
        "GetServerInfo": Operation(Concern.SELF, EVERY_ROLE, for_organisation=True),
        "ListLogLines": Operation(Concern.PROJECT, EVERY_ROLE),
        "ListAudit": Operation(Concern.PROJECT, _PRIVACY),
        "CreateProject": Operation(
            Concern.SERVER, _PEOPLE, "project.create", lambda request, _: About(request.project, quota_words(request))
        ),
        "ListProjects": Operation(Concern.SELF, EVERY_ROLE, for_organisation=True),
        "SetProjectQuota": Operation(
            Concern.SERVER, _PEOPLE, "project.quota", lambda request, _: About(request.project, quota_words(request))
        ),
        "CloseProject": Operation(Concern.SERVER, _PEOPLE, "project.close", lambda request, _: About(request.project)),
        "PruneStorage": Operation(Concern.SERVER, _RUNS, "storage.prune", _pruned),
        "ListPopulations": Operation(Concern.POPULATION, EVERY_ROLE),
        "ListCharges": Operation(Concern.CHARGES, EVERY_ROLE, "ledger.export", _exported),
        "GetParticipantPrivacy": Operation(Concern.PARTICIPANT, EVERY_ROLE, for_organisation=True),
        "LimitPopulation": Operation(Concern.POPULATION, _PRIVACY, "population.limit", _limited),
    }
)
"""Operations by method name. Every role may call ``CreateOperator`` because each operator renews its own credential
with it; any other use is for administrators (``access.operators``)."""


def actions_of(role: OperatorRole, *, of_organisation: bool = False, closed: bool = False) -> tuple[str, ...]:
    """The actions in a project that a role there allows, in order.

    Args:
        role: in the project.
        of_organisation: whether the role is for one organisation only.
        closed: whether the project is closed.
    """
    return _actions(
        one
        for one in OPERATIONS.values()
        if one.concern is not Concern.SERVER
        and role in one.roles
        and (one.for_organisation or not of_organisation)
        and not (closed and one.begins)
    )


def server_actions_of(role: OperatorRole) -> tuple[str, ...]:
    """The actions about the server as a whole that a role in all projects allows, in order."""
    return _actions(one for one in OPERATIONS.values() if one.concern is Concern.SERVER and role in one.roles)


def _actions(operations: Iterable[Operation]) -> tuple[str, ...]:
    return tuple(sorted(one.action for one in operations if one.action))


def operation_of(method: str) -> Operation | None:
    """The operation of a gRPC method such as ``/atoll.wire.v1.ControlService/PauseRun``; None for other services'.

    Raises:
        KeyError: for a method of the service that the table does not have.
    """
    service, _, name = method.rpartition("/")
    return OPERATIONS[name] if service == SERVICE else None
