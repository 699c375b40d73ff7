"""The control API as typed calls; failures are ``CommandError``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc

from atoll.server.cli.errors import UnreachableError, translated
from atoll.server.cli.ledger_queries import LedgerQueries
from atoll.server.control import (
    Following,
    NewTokens,
    OperatorCertificate,
    OperatorSummary,
    ParticipantSummary,
    PopulationSummary,
    Progress,
    PrunedStorage,
    RevokedOperator,
    RunDetail,
    RunSummary,
    ServerInfo,
    TokenSummary,
    detail_of,
    make_readable,
    progress_of,
    value_of,
    values_of,
)
from atoll.wire.chunks import parse_download
from atoll.wire.messages import layout_from_proto, layout_to_proto, manifest_from_proto, manifest_to_proto
from atoll.wire.v1 import control_pb2, control_pb2_grpc, enrolment_pb2, transfer_pb2, transfer_pb2_grpc

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from atoll.wire.digest import BlobManifest
    from atoll.wire.layout import Layout

CALL_TIMEOUT_S = 30.0
DELETE_TIMEOUT_S = 300.0
"""A long run with many participants has millions of rows."""
LEDGER_TIMEOUT_S = 300.0
"""A long ledger is verified and added up."""
SUBMIT_TIMEOUT_S = 300.0
"""The server first computes a private job's noise: seconds, more on a busy machine."""
SLOWEST_BYTES_PER_S = 256 * 1024
"""Transfers slower than this are ended."""

_DOWNLOAD = "/atoll.wire.v1.TransferService/Download"
_KINDS = {
    "edge": enrolment_pb2.PARTICIPANT_KIND_EDGE,
    "silo": enrolment_pb2.PARTICIPANT_KIND_SILO,
}
Response = TypeVar("Response", bound="Message")


def transfer_timeout_s(size_bytes: int) -> float:
    """Maximum seconds of a transfer."""
    return CALL_TIMEOUT_S + size_bytes / SLOWEST_BYTES_PER_S


@dataclass(frozen=True)
class ModelRef:
    """A released model: its layout, its blob, and the number of rounds released before it (0: the initial model)."""

    layout: Layout
    blob: str
    round: int


class ControlClient(LedgerQueries):
    """Calls to one server over ``channel``, which is closed at the end.

    Each call raises a ``CommandError`` if the server is unreachable or refuses it.
    """

    def __init__(self, channel: grpc.Channel, address: str, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self.address = address
        self.channel = channel
        self._metadata = metadata
        self._control = control_pb2_grpc.ControlServiceStub(channel)
        self._transfer = transfer_pb2_grpc.TransferServiceStub(channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()

    def server_info(self) -> ServerInfo:
        """The server's version, clock and load."""
        return value_of(ServerInfo, self._call(self._control.GetServerInfo, control_pb2.GetServerInfoRequest()))

    def prune(self, *, dry_run: bool) -> tuple[PrunedStorage, ...]:
        """Have the server remove what nothing needs, or (``dry_run``) list it."""
        request = control_pb2.PruneStorageRequest(dry_run=dry_run)
        return values_of(PrunedStorage, self._call(self._control.PruneStorage, request).pruned)

    def create_tokens(self, organisation: str, kind: str, lifetime_s: float, count: int) -> NewTokens:
        """Mint one-time join tokens; ``kind`` is edge or silo."""
        request = control_pb2.CreateTokenRequest(
            organisation=organisation, kind=_KINDS[kind], lifetime_s=lifetime_s, count=count
        )
        return value_of(NewTokens, self._call(self._control.CreateToken, request))

    def tokens(self, *, unused: bool = False) -> Iterator[TokenSummary]:
        """All join tokens, or the unused ones, the newest first, without their secrets; page by page."""
        after, more = "", True
        while more:
            request = control_pb2.ListTokensRequest(after=after, unused=unused)
            answer = self._call(self._control.ListTokens, request)
            yield from values_of(TokenSummary, answer.tokens)
            after, more = answer.next, bool(answer.next)

    def participants(self, *, connected: bool = False, organisation: str = "") -> Iterator[ParticipantSummary]:
        """All enrolled participants, or those that are connected, or of one organisation; page by page."""
        after, more = "", True
        while more:
            request = control_pb2.ListParticipantsRequest(after=after, connected=connected, organisation=organisation)
            answer = self._call(self._control.ListParticipants, request)
            yield from values_of(ParticipantSummary, answer.participants)
            after, more = answer.next, bool(answer.next)

    def revoke(self, participant: str, reason: str) -> ParticipantSummary:
        """Revoke a participant, at once and for good."""
        request = control_pb2.RevokeParticipantRequest(participant=participant, reason=reason)
        return value_of(ParticipantSummary, self._call(self._control.RevokeParticipant, request).participant)

    def create_operator(self, name: str, csr_pem: bytes, lifetime_s: float) -> OperatorCertificate:
        """Have an operator's key certified."""
        request = control_pb2.CreateOperatorRequest(name=name, csr_pem=csr_pem, lifetime_s=lifetime_s)
        return value_of(OperatorCertificate, self._call(self._control.CreateOperator, request))

    def operators(self) -> tuple[OperatorSummary, ...]:
        """All operators, by name."""
        answer = self._call(self._control.ListOperators, control_pb2.ListOperatorsRequest())
        return values_of(OperatorSummary, answer.operators)

    def revoke_operator(self, name: str, reason: str) -> RevokedOperator:
        """Revoke an operator at once."""
        request = control_pb2.RevokeOperatorRequest(name=name, reason=reason)
        return value_of(RevokedOperator, self._call(self._control.RevokeOperator, request))

    def list_populations(self, request: control_pb2.ListPopulationsRequest) -> control_pb2.ListPopulationsResponse:
        """See ``LedgerQueries``."""
        return self._call(self._control.ListPopulations, request, LEDGER_TIMEOUT_S)

    def list_charges(self, request: control_pb2.ListChargesRequest) -> control_pb2.ListChargesResponse:
        """See ``LedgerQueries``."""
        return self._call(self._control.ListCharges, request, LEDGER_TIMEOUT_S)

    def get_participant_privacy(
        self, request: control_pb2.GetParticipantPrivacyRequest
    ) -> control_pb2.GetParticipantPrivacyResponse:
        """See ``LedgerQueries``."""
        return self._call(self._control.GetParticipantPrivacy, request, LEDGER_TIMEOUT_S)

    def limit_population(self, population: str, limit: tuple[float, float] | None, adjacency: str) -> PopulationSummary:
        """Limit what a population's runs may spend together, to (epsilon, delta); None removes the limit."""
        epsilon, delta = (None, None) if limit is None else limit
        request = control_pb2.LimitPopulationRequest(
            population=population, epsilon=epsilon, delta=delta, adjacency=adjacency
        )
        answer = self._call(self._control.LimitPopulation, request, LEDGER_TIMEOUT_S)
        return value_of(PopulationSummary, answer.population)

    def runs(self, page: int = 0) -> Iterator[RunSummary]:
        """All runs, the newest first, in pages of ``page`` runs; 0: as many as the server lists at once."""
        after, more = "", True
        while more:
            answer = self._call(self._control.ListRuns, control_pb2.ListRunsRequest(limit=page, after=after))
            yield from values_of(RunSummary, answer.runs)
            after, more = answer.next, bool(answer.next)

    def newest_run(self) -> str | None:
        """The id of the newest run; None before the first."""
        return next((run.run for run in self.runs(page=1)), None)

    def run(self, run: str, *, members: bool = False, only: int | None = None, since: int = 0) -> RunDetail:
        """A run with its rounds: ``only`` the attempts at one round, or those from ``since`` on; members if asked."""
        request = control_pb2.GetRunRequest(run=run, members=members, round=only, since=since)
        return detail_of(self._call(self._control.GetRun, request))

    def watch(self, run: str) -> Iterator[Progress]:
        """The run now and at every change until it has ended; if the stream breaks, watch again."""
        with translated(self.address):
            stream = self._control.WatchRun(control_pb2.WatchRunRequest(run=run), metadata=self._metadata)
            following = Following()
            try:
                for message in stream:
                    make_readable(message)
                    complete = following.complete(message)
                    if complete is not None:
                        yield progress_of(complete)
            finally:
                stream.cancel()

    def wait_until_reachable(self, timeout_s: float) -> None:
        """Wait for an unreachable server.

        Raises:
            UnreachableError: if it does not come back in time.
        """
        try:
            grpc.channel_ready_future(self.channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError:
            raise UnreachableError(f"the server at {self.address} did not come back within {timeout_s:.0f} s") from None

    def pause(self, run: str) -> RunSummary:
        """Pause after the round in work."""
        return self._changed(self._control.PauseRun, control_pb2.PauseRunRequest(run=run))

    def resume(self, run: str) -> RunSummary:
        """Resume a paused run."""
        return self._changed(self._control.ResumeRun, control_pb2.ResumeRunRequest(run=run))

    def cancel(self, run: str, reason: str) -> RunSummary:
        """End a run now."""
        return self._changed(self._control.CancelRun, control_pb2.CancelRunRequest(run=run, reason=reason))

    def delete(self, run: str) -> tuple[PrunedStorage, ...]:
        """Delete a run that has ended; returns what was removed."""
        answer = self._call(self._control.DeleteRun, control_pb2.DeleteRunRequest(run=run), DELETE_TIMEOUT_S)
        return values_of(PrunedStorage, answer.removed)

    def submit(self, job_toml: bytes, file_name: str, layout: Layout, blob: str) -> str:
        """Begin a run from an uploaded model; returns its id."""
        request = control_pb2.SubmitRunRequest(
            job_toml=job_toml, file_name=file_name, layout=layout_to_proto(layout), initial_blob=blob
        )
        return self._call(self._control.SubmitRun, request, SUBMIT_TIMEOUT_S).run

    def upload_model(self, manifest: BlobManifest, chunks: Iterable[bytes]) -> str:
        """Send a model; returns its blob's name. Holds a few chunks at a time."""

        def requests() -> Iterator[control_pb2.UploadModelRequest]:
            head = manifest_to_proto(manifest)
            for index, chunk in enumerate(chunks):
                yield control_pb2.UploadModelRequest(manifest=head if index == 0 else None, index=index, payload=chunk)

        return self._call(self._control.UploadModel, requests(), transfer_timeout_s(manifest.size_bytes)).blob

    def model(self, run: str, round_number: int | None, *, averaged: bool = False) -> ModelRef:
        """The model after ``round_number`` rounds (0: the initial one), or the newest; or the mean of all so far."""
        request = control_pb2.GetRunModelRequest(run=run, round=round_number, averaged=averaged)
        answer = self._call(self._control.GetRunModel, request)
        return ModelRef(layout_from_proto(answer.model.layout), answer.model.blob, answer.round)

    def manifest(self, blob: str) -> BlobManifest:
        """The chunk size of a blob, and the digests of its chunks."""
        answer = self._call(self._transfer.GetManifest, transfer_pb2.GetManifestRequest(blob=blob))
        return manifest_from_proto(answer.manifest)

    def download(self, blob: str, first_chunk: int, timeout_s: float) -> Iterator[tuple[int, memoryview]]:
        """(index, payload) of the chunks from ``first_chunk`` on, not verified; waits for an unreachable server."""
        call: Callable[..., Any] = self.channel.unary_stream(
            _DOWNLOAD, request_serializer=transfer_pb2.DownloadRequest.SerializeToString
        )
        stream = call(
            transfer_pb2.DownloadRequest(blob=blob, first_chunk=first_chunk),
            metadata=self._metadata,
            timeout=timeout_s,
            wait_for_ready=True,
        )
        with translated(self.address):
            try:
                for message in stream:
                    yield parse_download(message)
            finally:
                stream.cancel()

    def _changed(self, method: Callable[..., Any], request: object) -> RunSummary:
        return value_of(RunSummary, self._call(method, request).summary)

    def _call(
        self,
        method: Callable[..., Response],
        request: object,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Response:
        with translated(self.address):
            answer = method(request, timeout=timeout_s, metadata=self._metadata)
        make_readable(answer)
        return answer
