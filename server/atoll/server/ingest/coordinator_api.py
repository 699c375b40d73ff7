"""The coordinator's interface for ingest nodes, in the coordinator's process or in a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from atoll.server.identity import DEFAULT_PROJECT, Rights, Role
from atoll.wire.v1 import transfer_pb2


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller: its role and its name (participant id or operator name).

    ``rights`` is None for a participant, and in an ingest worker, which does not need it. ``project`` is a
    participant's, and only gateways need it; elsewhere it may be ``default``.
    """

    role: Role
    name: str
    rights: Rights | None = field(default=None, compare=False)
    project: str = field(default=DEFAULT_PROJECT, compare=False)


class Disposition(StrEnum):
    """The outcome of a report."""

    COUNTED = "counted"
    CARRIED = "carried"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class ReportReceipt:
    """The answer to a report: durable before it is sent, and the same whenever the report is repeated."""

    disposition: Disposition
    digest: str


@dataclass(frozen=True, slots=True)
class UploadGrant:
    """Permission to upload for one attempt of a round.

    Attributes:
        elements: number of elements of the update: all N, or those of the fragment that the round updates.
        max_abs: magnitude above which the update is rejected.
        max_bytes: maximum payload bytes of all the participant's uploads for the attempt.
        max_uploads: maximum number of uploads that the participant may begin for the attempt.
        max_weight: the largest weight that may be reported.
        receipt: set if the participant has already reported, so that nothing more needs to be sent.
        first: the update has the elements [first, first + elements); chunks with other elements are refused.
        max_chunks: maximum number of chunks in all the participant's uploads for the attempt.
    """

    elements: int
    max_abs: float
    max_bytes: int
    max_weight: int
    max_uploads: int
    receipt: ReportReceipt | None = None
    first: int = 0
    max_chunks: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """A complete, admissible and durable upload, or the reason why it is refused.

    Attributes:
        participant: the reporting participant.
        report: its report.
        node: the ingest node that received it.
        payload_bytes: total bytes of the chosen payloads.
        norm: Euclidean norm of the update.
        rejection: why the update is refused; empty if it is accepted.
        late: whether the round no longer takes reports; the report is then recorded as late, without an upload.
        upload_at: epoch seconds at which the first byte of the update arrived; 0 if unknown.
    """

    participant: str
    report: transfer_pb2.ReportRequest
    node: str
    payload_bytes: int = 0
    norm: float = 0.0
    rejection: str = ""
    late: bool = False
    upload_at: float = 0.0


class CoordinatorApi(Protocol):
    """The coordinator's side of an ingest node's calls."""

    async def identify(self, certificate_pem: bytes) -> Caller:
        """The holder of this certificate.

        Raises:
            UnauthenticatedError: if it is unknown, expired or revoked.
        """
        ...

    async def grant_upload(self, participant: str, run: str, round_number: int, attempt: int) -> UploadGrant:
        """Permission to upload.

        Raises:
            NotFoundError: no such run.
            ForbiddenError: the participant is not in the cohort.
            TooLateError: the round is over and late reports are not wanted.
        """
        ...

    async def grant_download(self, caller: Caller, blob: str) -> None:
        """Permission to read a blob.

        Raises:
            ForbiddenError: if the blob is not the model of a round of which the participant is a member.
        """
        ...

    async def commit(self, commit: Commit) -> ReportReceipt:
        """Record a report; returns when the record is durable.

        Raises:
            ConflictError: if another update is recorded under the same key.
            InvalidRequestError: if the weight is out of bounds.
            TooLateError: the round is over.
        """
        ...
