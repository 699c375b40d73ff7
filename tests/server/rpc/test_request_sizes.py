"""Every method has a size limit for its requests, which is checked before they are parsed."""

from __future__ import annotations

import pytest
from google.protobuf.message_factory import GetMessageClass

from atoll.client._connection.keys import make_csr, make_key
from atoll.server.config.limits import Limits
from atoll.server.errors import InvalidRequestError, LimitExceededError
from atoll.server.rpc.introductions import MAX_LABEL_CHARS, MAX_LABELS, MAX_REASON_CHARS, MAX_RESUMING
from atoll.server.rpc.request_sizes import (
    BY_SETTING,
    CHECK_IN,
    MOST_BYTES,
    NAMES_BYTES,
    SUBMIT,
    UPLOADS,
    most_bytes,
    parser_of,
)
from atoll.server.rpc.transfer import MAX_NAMED_CHUNKS
from atoll.wire.v1 import control_pb2, enrolment_pb2, gateway_pb2, ingest_pb2, participation_pb2, transfer_pb2
from tests.server.rpc.world import Participant, refused_code

FILES = (control_pb2, enrolment_pb2, gateway_pb2, ingest_pb2, participation_pb2, transfer_pb2)
REQUESTS = {
    f"/{service.full_name}/{method.name}": method.input_type
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
METHODS = list(REQUESTS)
LIMITS = Limits()
REPORT = "/atoll.wire.v1.TransferService/Report"
WIDE = "\N{GRINNING FACE}"
"""A character of four bytes."""


def test_what_the_table_names_exists() -> None:
    assert {*MOST_BYTES, *BY_SETTING, *UPLOADS, SUBMIT} <= set(METHODS)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in {*UPLOADS, SUBMIT}])
def test_a_method_without_chunks_takes_little_and_parses_nothing_larger(method: str) -> None:
    parsed: list[bytes] = []
    parse, most = parser_of(method, parsed.append, LIMITS), most_bytes(method, LIMITS)
    assert most <= LIMITS.request_bytes <= LIMITS.message_bytes // 16
    parse(bytes(most))
    with pytest.raises(LimitExceededError, match=f"a request of {most + 1} bytes; at most {most}") as caught:
        parse(bytes(most + 1))
    assert caught.value.detail.code == "request.bytes"
    assert [len(raw) for raw in parsed] == [most]


@pytest.mark.parametrize("method", [*UPLOADS, SUBMIT])
def test_chunks_and_jobs_may_be_as_large_as_the_port_takes(method: str) -> None:
    assert parser_of(method, None, LIMITS)(bytes(LIMITS.message_bytes))


def test_the_setting_moves_the_limit_of_reports_and_downloads_alone() -> None:
    wide = Limits(request_bytes=1 << 20)
    moved = {name for name in METHODS if most_bytes(name, wide) != most_bytes(name, LIMITS)}
    assert moved == set(BY_SETTING)


def test_the_largest_that_clients_send_fits() -> None:
    """The largest request of each kind that the other limits allow."""
    key = participation_pb2.RoundKey(run="r" * 64, round=2**32 - 1, attempt=2**32 - 1)
    labels = {f"{number:02}" + (MAX_LABEL_CHARS - 2) * WIDE: "" for number in range(MAX_LABELS)}
    hello = participation_pb2.Hello(client_version=64 * WIDE, labels=labels, resuming=MAX_RESUMING * [key])
    reply = participation_pb2.TaskReply(key=key, reason=MAX_REASON_CHARS * WIDE)
    csr = make_csr(make_key())
    certificate = 4 * csr
    opened = gateway_pb2.SessionOpened(certificate_pem=certificate, hello=hello)
    status = transfer_pb2.GetUploadStatusRequest(key=transfer_pb2.UploadKey(round=key, upload_id="f" * 64))
    named = transfer_pb2.DownloadRequest(blob="f" * 64, chunks=range(MAX_NAMED_CHUNKS))
    for method, request in (
        (CHECK_IN, participation_pb2.CheckInRequest(hello=hello)),
        (CHECK_IN, participation_pb2.CheckInRequest(reply=reply)),
        ("/atoll.wire.v1.EnrolmentService/Enrol", enrolment_pb2.EnrolRequest(csr_pem=csr, secret="s" * 256)),
        (
            "/atoll.wire.v1.EnrolmentService/RenewExpired",
            enrolment_pb2.RenewExpiredRequest(certificate_pem=certificate, csr_pem=csr, signature=bytes(256)),
        ),
        ("/atoll.wire.v1.GatewayService/Attend", gateway_pb2.AttendRequest(opened=opened)),
        ("/atoll.wire.v1.CoordinatorService/Identify", ingest_pb2.IdentifyRequest(certificate_pem=certificate)),
        ("/atoll.wire.v1.TransferService/GetUploadStatus", status),
        ("/atoll.wire.v1.TransferService/Download", named),
    ):
        assert request.ByteSize() <= most_bytes(method, LIMITS), method


WITH_REASON = [method for method, request in REQUESTS.items() if "reason" in request.fields_by_name]


def test_operators_give_reasons_in_these_requests() -> None:
    assert [method.rpartition("/")[2] for method in WITH_REASON] == ["CancelRun", "RevokeParticipant", "RevokeOperator"]


@pytest.mark.parametrize("method", WITH_REASON)
def test_a_reason_is_cut_to_length_and_not_refused(method: str) -> None:
    """The request has room for several times the stored reason, in the widest characters."""
    request = GetMessageClass(REQUESTS[method])(reason=5 * MAX_REASON_CHARS * WIDE)
    assert parser_of(method, type(request).FromString, LIMITS)(request.SerializeToString()) == request


def test_what_is_no_message_is_the_callers_fault() -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        parser_of(REPORT, transfer_pb2.ReportRequest.FromString, LIMITS)(b"\xff\xff")


async def test_a_request_beyond_its_methods_limit_is_refused(alice: Participant) -> None:
    """A report could be that large."""
    refused = await refused_code(alice.raw("/atoll.wire.v1.TransferService/GetManifest", bytes(NAMES_BYTES + 1)))
    assert refused == ("RESOURCE_EXHAUSTED", "request.bytes")
