"""Run tasks in the calling process: everything that a session does with an invitation except the transfers.

Simulations use it. The session's own code (``Work``) decodes the invitation, calls the participant, and checks, clips,
encodes and digests its result; messages are returned instead of sent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy.typing as npt

from atoll.client._session.invitation import Invitation, invitation_of, own_fields, remaining_s_of
from atoll.client._session.protection import Protection
from atoll.client._session.work import Work
from atoll.client._telemetry.users_errors import users_frame, users_traceback
from atoll.client.cli.locate import locate
from atoll.client.control import TaskControl
from atoll.client.model import Model
from atoll.client.participant import Participant, declared_examples, objection_of
from atoll.wire.v1 import participation_pb2, transfer_pb2

if TYPE_CHECKING:
    from atoll.client._transfer.task_transfers import TaskTransfers
    from atoll.client._transfer.upload import Upload
    from atoll.client.policy import Policy
    from atoll.client.task import Task
    from atoll.wire.chunks import ChunkHeader
    from atoll.wire.layout import Layout

__all__ = ["Completed", "Order", "Performer", "Pieces", "declared_examples", "locate", "users_frame", "users_traceback"]

HELD_BYTES = 8 << 20
"""Updates of up to this many bytes are encoded once and held; larger ones are encoded chunk by chunk when read."""
Piece = tuple["ChunkHeader", npt.NDArray[Any]]
"""A chunk of an update: its header, and its payload as it would be sent."""
Look = Callable[["ChunkHeader", npt.NDArray[Any]], object]
"""Called with each chunk of an update, once and in order."""


class Pieces:
    """The chunks of an update in order, the same at each iteration until the participant works again."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._held: tuple[Piece, ...] | None = None

    def __iter__(self) -> Iterator[Piece]:
        return self._upload.pieces() if self._held is None else iter(self._held)

    def hold(self) -> None:
        """Keep the chunks in memory, so that they outlive changes of the participant's arrays."""
        if self._held is None:
            self._held = tuple(self)


class _Standing(TaskControl):
    """A deadline that does not approach while the participant works."""

    def __init__(self, remaining_s: float) -> None:
        super().__init__(remaining_s)
        self._standing_s = remaining_s

    @property
    def remaining_s(self) -> float:
        """Seconds to the deadline when the task began."""
        return self._standing_s

    def arm(self, reserve_s: float) -> None:
        """Never stop because of the clock."""
        del reserve_s


@dataclass(frozen=True)
class Order:
    """The shared part of a round's invitations, decoded once.

    Attributes:
        invitation: the task, without member-specific bounds.
        blob: name of the model's blob.
        content: the model, if it came with the invitation; otherwise empty.
    """

    invitation: Invitation

    @classmethod
    def of(cls, shared: bytes) -> Order:
        """Decode the fields that all members get, a serialised ``Participate``.

        Raises:
            WireError: for an invitation that cannot be read, as in a session.
        """
        return cls(invitation_of(participation_pb2.Participate.FromString(shared)))

    @property
    def blob(self) -> str:
        """Name of the model's blob."""
        return self.invitation.model.blob

    @property
    def content(self) -> bytes:
        """The model, if it is small enough to come with the invitation; otherwise empty."""
        return self.invitation.model.content

    @property
    def layout(self) -> Layout:
        """The model's layout."""
        return self.invitation.model.layout

    def for_member(self, own: bytes) -> Invitation:
        """The invitation of one member; ``own`` has its member-specific fields."""
        message = participation_pb2.Participate.FromString(own)
        control = _Standing(remaining_s_of(message))
        task = dataclasses.replace(self.invitation.task, control=control, **own_fields(message))
        return Invitation(task, self.invitation.inputs, self.invitation.return_spread_s)


@dataclass(frozen=True)
class Completed:
    """The answer that a participant would send.

    Attributes:
        report: the report, with the digest of the update.
        pieces: the update's chunks; None for an evaluation.
        payload_bytes: bytes of their payloads.
    """

    report: transfer_pb2.ReportRequest
    pieces: Pieces | None
    payload_bytes: int = 0


class Performer:
    """Runs participants' tasks, one at a time.

    Args:
        policy: what may be sent (``Policy.metrics``, ``Policy.errors``); quotas and promises are not kept.
        chunk_bytes: largest chunk of an update, as in the server's welcome.
    """

    def __init__(self, policy: Policy | None = None, *, chunk_bytes: int) -> None:
        self._protection = Protection(policy=policy)
        self._transfers = _ChunkSize(chunk_bytes)

    def objection(self, participant: Participant, invitation: Invitation) -> str | None:
        """The participant's reason to decline; None if it accepts the task."""
        return self._protection.objection(invitation.task) or objection_of(participant, invitation.task)

    def perform(self, participant: Participant, invitation: Invitation, model: Model, look: Look) -> Completed:
        """Evaluate and train as the task asks; ``look`` gets the update's chunks.

        Raises:
            TrainerError: if the participant's code failed; its cause is that code's exception.
            UpdateError: if what it returned breaks the contract.
        """
        work = _Work.of(participant, invitation, model, self._protection, self._transfers, look)
        work.perform_steps()
        return work.completed[0]

    def text_for_server(self, error: Exception) -> str:
        """The description of a failure for the server."""
        return self._protection.text_for_server(error)


@dataclass(frozen=True)
class _ChunkSize:
    """Replaces the transfers."""

    chunk_bytes: int


@dataclass(frozen=True)
class _Work(Work):
    """``Work`` on a model that is already local; it keeps the report and the update."""

    model: Model | None = None
    look: Look = lambda _header, _payload: None
    completed: list[Completed] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        participant: Participant,
        invitation: Invitation,
        model: Model,
        protection: Protection,
        sizes: _ChunkSize,
        look: Look,
    ) -> _Work:
        """The work on one task, without the parts that only transfers need."""
        absent = cast("Any", None)
        transfers = cast("TaskTransfers", sizes)
        return cls(
            participant,
            invitation,
            transfers,
            absent,
            absent,
            _unobserved,
            protection=protection,
            logs_failures=False,
            model=model,
            look=look,
        )

    def _inputs(self) -> tuple[Model, Task]:
        return cast("Model", self.model), self.invitation.task

    def _deliver(self, upload: Upload | None, request: transfer_pb2.ReportRequest) -> transfer_pb2.ReportResponse:
        if upload is None:
            self.completed.append(Completed(request, None))
            return transfer_pb2.ReportResponse()
        pieces = Pieces(upload)
        if upload.total_bytes <= HELD_BYTES:
            pieces.hold()
        for header, payload in pieces:
            self.look(header, payload)
        request.digest = upload.digest
        self.completed.append(Completed(request, pieces, upload.total_bytes))
        return transfer_pb2.ReportResponse()


def _unobserved(event: object) -> None:
    del event
