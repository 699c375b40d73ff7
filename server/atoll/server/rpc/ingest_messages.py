"""Converts ingest values to and from the protobuf messages between the server's processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from atoll.server.aggregation import Grid
from atoll.server.errors import InvalidRequestError
from atoll.server.identity import Role
from atoll.server.ingest.coordinator_api import Commit, Disposition, ReportReceipt, UploadGrant
from atoll.server.ingest.node import FoldItem, SumKey
from atoll.wire.v1 import ingest_pb2, participation_pb2, transfer_pb2

_RECEIPTS = {
    Disposition.COUNTED: transfer_pb2.ReportResponse.DISPOSITION_COUNTED,
    Disposition.CARRIED: transfer_pb2.ReportResponse.DISPOSITION_CARRIED,
    Disposition.DROPPED: transfer_pb2.ReportResponse.DISPOSITION_DROPPED,
}
_DISPOSITIONS = {number: disposition for disposition, number in _RECEIPTS.items()}


def role_of(text: str) -> Role:
    """The role with this name.

    Raises:
        InvalidRequestError: if there is no such role.
    """
    if text not in set(Role):
        raise InvalidRequestError("caller.role", f"role {text[:20]!r}: there are {', '.join(Role)}")
    return Role(text)


def receipt_to_proto(receipt: ReportReceipt) -> transfer_pb2.ReportResponse:
    """Convert a receipt to its message."""
    return transfer_pb2.ReportResponse(disposition=_RECEIPTS[receipt.disposition], digest=receipt.digest)


def receipt_from_proto(message: transfer_pb2.ReportResponse) -> ReportReceipt:
    """Convert a message to its receipt."""
    return ReportReceipt(_DISPOSITIONS[message.disposition], message.digest)


def grant_to_proto(grant: UploadGrant) -> ingest_pb2.GrantUploadResponse:
    """Convert a permission to upload to its message."""
    return ingest_pb2.GrantUploadResponse(
        elements=grant.elements,
        max_abs=grant.max_abs,
        max_bytes=grant.max_bytes,
        max_weight=grant.max_weight,
        max_uploads=grant.max_uploads,
        first=grant.first,
        max_chunks=grant.max_chunks,
        receipt=receipt_to_proto(grant.receipt) if grant.receipt is not None else None,
    )


def grant_from_proto(message: ingest_pb2.GrantUploadResponse) -> UploadGrant:
    """Convert a message to its permission to upload."""
    return UploadGrant(
        elements=message.elements,
        max_abs=message.max_abs,
        max_bytes=message.max_bytes,
        max_weight=message.max_weight,
        max_uploads=message.max_uploads,
        receipt=receipt_from_proto(message.receipt) if message.HasField("receipt") else None,
        first=message.first,
        max_chunks=message.max_chunks,
    )


def commit_to_proto(commit: Commit) -> ingest_pb2.CommitRequest:
    """Convert an upload to commit to its message."""
    return ingest_pb2.CommitRequest(
        participant=commit.participant,
        report=commit.report,
        node=commit.node,
        payload_bytes=commit.payload_bytes,
        norm=commit.norm,
        rejection=commit.rejection,
        late=commit.late,
        upload_at=commit.upload_at,
    )


def commit_from_proto(message: ingest_pb2.CommitRequest) -> Commit:
    """Convert a message to its upload to commit."""
    return Commit(
        participant=message.participant,
        report=message.report,
        node=message.node,
        payload_bytes=message.payload_bytes,
        norm=message.norm,
        rejection=message.rejection,
        late=message.late,
        upload_at=message.upload_at,
    )


def fold_to_proto(key: SumKey, items: Sequence[FoldItem]) -> ingest_pb2.FoldRequest:
    """Convert updates to add to a sum to their message."""
    return ingest_pb2.FoldRequest(
        round=_round(key), elements=key.elements, first=key.first, grid=_grid(key), items=_items(items)
    )


def partial_to_proto(key: SumKey, items: Sequence[FoldItem], path: str) -> ingest_pb2.WritePartialRequest:
    """Convert a partial sum to write to its message."""
    return ingest_pb2.WritePartialRequest(
        round=_round(key), elements=key.elements, first=key.first, grid=_grid(key), items=_items(items), path=path
    )


def key_of(request: ingest_pb2.FoldRequest | ingest_pb2.WritePartialRequest) -> SumKey:
    """The key of a request's sum."""
    at, grid = request.round, request.grid
    spec = Grid(grid.fraction_bits, grid.max_abs, grid.weight_shift, grid.weight_total_bits, grid.clip)
    return SumKey(at.run, at.round, at.attempt, request.elements, spec, request.first)


def items_of(items: Sequence[ingest_pb2.FoldItem]) -> list[FoldItem]:
    """The updates in a request."""
    return [fold_item_from_proto(item) for item in items]


def fold_item_from_proto(item: ingest_pb2.FoldItem) -> FoldItem:
    """Convert a message to its update."""
    at = item.origin
    return FoldItem(at.run, at.round, at.attempt, item.participant, item.digest, item.integer_weight)


def fold_item_to_proto(item: FoldItem) -> ingest_pb2.FoldItem:
    """Convert an update to its message."""
    return ingest_pb2.FoldItem(
        origin=participation_pb2.RoundKey(run=item.run, round=item.round, attempt=item.attempt),
        participant=item.participant,
        digest=item.digest,
        integer_weight=item.weight,
    )


def _round(key: SumKey) -> participation_pb2.RoundKey:
    return participation_pb2.RoundKey(run=key.run, round=key.round, attempt=key.attempt)


def _grid(key: SumKey) -> ingest_pb2.GridSpec:
    return ingest_pb2.GridSpec(**asdict(key.grid))


def _items(items: Sequence[FoldItem]) -> list[ingest_pb2.FoldItem]:
    return [fold_item_to_proto(item) for item in items]
