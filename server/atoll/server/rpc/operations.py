"""Every call of an operator: what the audit log says of it.

A method that is not in ``OPERATIONS`` is refused (``supervision``), so a new one cannot be forgotten here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

SERVICE = "/atoll.wire.v1.ControlService"


@dataclass(frozen=True)
class About:
    """What an action is about, and further values."""

    subject: str = ""
    detail: str = ""


Describe = Callable[[Any, Any], About | None]
"""What an entry says, of a request and its answer, either of which may be None; None: this call changes nothing."""


@dataclass(frozen=True)
class Operation:
    """One method.

    Attributes:
        action: its name in the audit log; empty for methods that only read.
        describe: see ``Describe``.
    """

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


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "UploadModel": Operation("model.upload", _uploaded),
        "SubmitRun": Operation("run.submit", _submitted),
        "ListRuns": Operation(),
        "GetRun": Operation(),
        "WatchRun": Operation(),
        "PauseRun": Operation("run.pause", _of_run),
        "ResumeRun": Operation("run.resume", _of_run),
        "CancelRun": Operation("run.cancel", lambda request, _: About(request.run, request.reason)),
        "ExtendRun": Operation("run.extend", lambda request, _: About(request.run, f"{request.rounds} rounds")),
        "DeleteRun": Operation("run.delete", _of_run),
        "GetRunModel": Operation("model.read", _model),
        "CreateToken": Operation("token.create", _tokens),
        "ListTokens": Operation(),
        "ListParticipants": Operation(),
        "RevokeParticipant": Operation(
            "participant.revoke", lambda request, _: About(request.participant, request.reason)
        ),
        "CreateOperator": Operation("operator.create", lambda request, _: About(request.name)),
        "ListOperators": Operation(),
        "RevokeOperator": Operation("operator.revoke", lambda request, _: About(request.name, request.reason)),
        "GetServerInfo": Operation(),
        "ListLogLines": Operation(),
        "ListAudit": Operation(),
        "PruneStorage": Operation("storage.prune", _pruned),
        "ListPopulations": Operation(),
        "ListCharges": Operation("ledger.export", _exported),
        "GetParticipantPrivacy": Operation(),
        "LimitPopulation": Operation("population.limit", _limited),
    }
)
"""By the name of the method."""


def operation_of(method: str) -> Operation | None:
    """The operation of a gRPC method such as ``/atoll.wire.v1.ControlService/PauseRun``; None for other services'.

    Raises:
        KeyError: for a method of the service that the table does not have.
    """
    service, _, name = method.rpartition("/")
    return OPERATIONS[name] if service == SERVICE else None
