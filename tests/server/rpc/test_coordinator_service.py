import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest

from atoll.server import errors
from atoll.server.identity import Role
from atoll.server.ingest.coordinator_api import Caller, Commit, Disposition, ReportReceipt, UploadGrant
from atoll.server.process.listeners import Port, make_server
from atoll.server.rpc import coordinator_service
from atoll.server.rpc.coordinator_service import CoordinatorService, RemoteCoordinator
from atoll.server.rpc.ingest_messages import receipt_from_proto, receipt_to_proto
from atoll.wire.v1 import participation_pb2, transfer_pb2
from atoll.wire.v1.ingest_pb2_grpc import add_CoordinatorServiceServicer_to_server

RECEIPT = ReportReceipt(Disposition.CARRIED, "d" * 64)
GRANT = UploadGrant(
    elements=2**40, max_abs=32.0, max_bytes=2**50, max_weight=7, max_uploads=3, first=2**41, max_chunks=2**40
)
REPORT = transfer_pb2.ReportRequest(round=participation_pb2.RoundKey(run="r", round=3), weight=5, metrics={"loss": 0.5})


class Counter:
    """A coordinator with scripted answers, which records its calls."""

    def __init__(self) -> None:
        self.error: errors.ServerError | None = None
        self.grant = GRANT
        self.asked: list[object] = []

    def _ask(self, question: object) -> None:
        self.asked.append(question)
        if self.error is not None:
            raise self.error

    async def identify(self, certificate_pem: bytes) -> Caller:
        self._ask(certificate_pem)
        return Caller(Role.PARTICIPANT, "paaaaaaaaaaaa")

    async def grant_upload(self, participant: str, run: str, round_number: int, attempt: int) -> UploadGrant:
        self._ask((participant, run, round_number, attempt))
        return self.grant

    async def grant_download(self, caller: Caller, blob: str) -> None:
        self._ask((caller, blob))

    async def commit(self, commit: Commit) -> ReportReceipt:
        self._ask(commit)
        return RECEIPT


@pytest.fixture
async def counter(tmp_path: Path) -> AsyncIterator[tuple[Counter, RemoteCoordinator]]:
    """A coordinator, and its interface in another process."""
    made, server = Counter(), make_server(Port.INSIDE)
    add_CoordinatorServiceServicer_to_server(CoordinatorService(made), server)
    server.add_insecure_port(f"unix:{tmp_path}/coordinator.sock")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/coordinator.sock") as channel:
        yield made, RemoteCoordinator(channel)
    await server.stop(None)


async def test_questions_and_answers_arrive_as_they_went(counter: tuple[Counter, RemoteCoordinator]) -> None:
    made, coordinator = counter
    assert await coordinator.identify(b"pem") == Caller(Role.PARTICIPANT, "paaaaaaaaaaaa")
    assert await coordinator.grant_upload("p", "r", 3, 1) == GRANT
    made.grant = UploadGrant(0, 0.0, 0, 0, 0, RECEIPT)
    assert await coordinator.grant_upload("p", "r", 3, 1) == made.grant
    commit = Commit("p", REPORT, "worker-1", 10, 2.5, rejection="not finite", late=True, upload_at=12.5)
    assert await coordinator.commit(commit) == RECEIPT
    assert made.asked == [b"pem", ("p", "r", 3, 1), ("p", "r", 3, 1), commit]


async def test_a_revocation_makes_it_ask_again(counter: tuple[Counter, RemoteCoordinator]) -> None:
    """This also holds while an earlier answer is pending."""
    made, coordinator = counter
    await coordinator.identify(b"pem")
    await coordinator.identify(b"pem")
    assert made.asked == [b"pem"]
    coordinator.forget()
    asking = asyncio.create_task(coordinator.identify(b"pem"))
    await asyncio.sleep(0)  # it has asked
    made.error = errors.UnauthenticatedError("certificate.revoked", "revoked")
    coordinator.forget()
    with pytest.raises(errors.UnauthenticatedError):
        await asking


@pytest.mark.parametrize("disposition", Disposition)
def test_receipts(disposition: Disposition) -> None:
    receipt = ReportReceipt(disposition, "abc")
    assert receipt_from_proto(receipt_to_proto(receipt)) == receipt


@pytest.mark.parametrize(
    "kind",
    [
        errors.InvalidRequestError,
        errors.NotFoundError,
        errors.ConflictError,
        errors.UnauthenticatedError,
        errors.ForbiddenError,
        errors.LimitExceededError,
        errors.TooLateError,
        errors.UnavailableError,
        errors.CorruptDataError,
    ],
)
async def test_errors_come_out_as_they_went_in(
    counter: tuple[Counter, RemoteCoordinator], kind: type[errors.ServerError]
) -> None:
    made, coordinator = counter
    made.error = kind("round.over", "too late", "wait", 2.5)
    with pytest.raises(kind) as caught:
        await coordinator.grant_upload("p", "r", 0, 0)
    assert caught.value.detail == made.error.detail


async def test_a_failing_disk_is_worth_another_try(counter: tuple[Counter, RemoteCoordinator]) -> None:
    made, coordinator = counter
    made.error = errors.StorageError("store.unavailable", "disk full", retry_after_s=1.0)
    with pytest.raises(errors.UnavailableError, match="disk full"):
        await coordinator.commit(Commit("p", REPORT, "worker-1"))


async def test_a_bug_is_not_taken_for_an_outage(counter: tuple[Counter, RemoteCoordinator]) -> None:
    made, coordinator = counter
    made.error = errors.SetupError("x.y", "odd")
    with pytest.raises(errors.ServerError) as caught:
        await coordinator.commit(Commit("p", REPORT, "worker-1"))
    assert type(caught.value) is errors.ServerError
    assert caught.value.detail.code == "x.y"


async def test_who_holds_a_certificate_is_remembered_for_a_moment(
    counter: tuple[Counter, RemoteCoordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, coordinator = counter
    for _ in range(3):
        await coordinator.identify(b"pem")
    assert made.asked == [b"pem"]
    monkeypatch.setattr(coordinator, "_identity_s", 0.0)
    made.error = errors.UnauthenticatedError("certificate.revoked", "revoked")
    with pytest.raises(errors.UnauthenticatedError):
        await coordinator.identify(b"pem")


async def test_what_is_remembered_is_bounded(
    counter: tuple[Counter, RemoteCoordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, coordinator = counter
    monkeypatch.setattr(coordinator_service, "_CACHED", 2)
    for pem in (b"1", b"2", b"3", b"3", b"1"):
        await coordinator.identify(pem)
    assert made.asked == [b"1", b"2", b"3", b"1"]


async def test_a_coordinator_that_is_gone_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_service, "CALL_S", 0.2)
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/nobody.sock") as channel:
        with pytest.raises(errors.UnavailableError, match="coordinator does not answer") as caught:
            await RemoteCoordinator(channel).identify(b"pem")
    assert caught.value.detail.retry_after_s is not None
