"""Every call of an operator: which roles may make it, and what the audit log says of it.

A method that is not in ``OPERATIONS`` is refused (``supervision``), so a new one cannot be forgotten here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
"""What an entry says, of a request and its answer, either of which may be None; None: this call changes nothing."""


@dataclass(frozen=True)
class Operation:
    """One method.

    Attributes:
        roles: which operators may call it.
        action: its name in the audit log; empty for methods that only read.
        describe: see ``Describe``.
    """

    roles: frozenset[OperatorRole]
    action: str = ""
    describe: Describe = lambda _request, _answer: About()


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
    """Pages of a population's charges are its export; the newest ones, or those of a run, are for reading."""
    if not request.population or request.newest:
        return None
    return About(request.population, f"charges from {request.start}")


def _limited(request: Any, _: Any) -> About:
    given = request.HasField("epsilon") and request.HasField("delta")
    words = f"epsilon {request.epsilon:g} at delta {request.delta:g}" if given else "no limit"
    return About(request.population, words)


def _created(request: Any, _: Any) -> About:
    return About(request.name, OPERATOR_ROLES.get(request.role, ""))


_NAMED = 3
"""Number of tokens that an entry names."""
_RUNS = frozenset({OperatorRole.OPERATOR, OperatorRole.ADMINISTRATOR})
_STOPPING = _RUNS | {OperatorRole.PRIVACY_OFFICER}
_PRIVACY = frozenset({OperatorRole.PRIVACY_OFFICER, OperatorRole.ADMINISTRATOR})
_PEOPLE = frozenset({OperatorRole.ADMINISTRATOR})
OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "UploadModel": Operation(_RUNS, "model.upload", _uploaded),
        "SubmitRun": Operation(_RUNS, "run.submit", _submitted),
        "ListRuns": Operation(EVERY_ROLE),
        "GetRun": Operation(EVERY_ROLE),
        "WatchRun": Operation(EVERY_ROLE),
        "PauseRun": Operation(_STOPPING, "run.pause", _of_run),
        "ResumeRun": Operation(_RUNS, "run.resume", _of_run),
        "CancelRun": Operation(_STOPPING, "run.cancel", lambda request, _: About(request.run, request.reason)),
        "ExtendRun": Operation(_RUNS, "run.extend", lambda request, _: About(request.run, f"{request.rounds} rounds")),
        "DeleteRun": Operation(_RUNS, "run.delete", _of_run),
        "GetRunModel": Operation(MAY_READ_MODELS, "model.read", _model),
        "CreateToken": Operation(_RUNS, "token.create", _tokens),
        "ListTokens": Operation(EVERY_ROLE),
        "VoidTokens": Operation(_RUNS, "token.void", _voided),
        "ListParticipants": Operation(EVERY_ROLE),
        "RevokeParticipant": Operation(
            _RUNS, "participant.revoke", lambda request, _: About(request.participant, request.reason)
        ),
        "CreateOperator": Operation(EVERY_ROLE, "operator.create", _created),
        "SetOperatorRole": Operation(
            _PEOPLE, "operator.role", lambda request, _: About(request.name, OPERATOR_ROLES.get(request.role, "?"))
        ),
        "WhoAmI": Operation(EVERY_ROLE),
        "ListOperators": Operation(EVERY_ROLE),
        "RevokeOperator": Operation(_PEOPLE, "operator.revoke", lambda request, _: About(request.name, request.reason)),
        "GetServerInfo": Operation(EVERY_ROLE),
        "ListLogLines": Operation(EVERY_ROLE),
        "ListAudit": Operation(_PRIVACY),
        "PruneStorage": Operation(_RUNS, "storage.prune", _pruned),
        "ListPopulations": Operation(EVERY_ROLE),
        "ListCharges": Operation(EVERY_ROLE, "ledger.export", _exported),
        "GetParticipantPrivacy": Operation(EVERY_ROLE),
        "LimitPopulation": Operation(_PRIVACY, "population.limit", _limited),
    }
)
"""By the name of the method. ``CreateOperator`` is everyone's because each operator renews its own credential; anything
else is for administrators (``access.operators``)."""


def actions_of(role: OperatorRole) -> tuple[str, ...]:
    """The actions that a role allows, in order."""
    return tuple(sorted(one.action for one in OPERATIONS.values() if one.action and role in one.roles))


def operation_of(method: str) -> Operation | None:
    """The operation of a gRPC method such as ``/atoll.wire.v1.ControlService/PauseRun``; None for other services'.

    Raises:
        KeyError: for a method of the service that the table does not have.
    """
    service, _, name = method.rpartition("/")
    return OPERATIONS[name] if service == SERVICE else None
