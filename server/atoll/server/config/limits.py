"""Limits on participants, addresses and messages: ``[limits]`` of ``server.toml``.

``docs/limits.md`` is written from this file (``python -m atoll.server.process.reference``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from atoll.wire.digest import MAX_CHUNK_BYTES

MIB = 1 << 20
GIB = 1 << 30
LEAST_MESSAGE_BYTES = MAX_CHUNK_BYTES + (64 << 10)
"""Bytes of the largest chunk with its header."""


@dataclass(frozen=True)
class Refusal:
    """What exceeding a limit leads to: the error's code (empty: not the server's), what happens, what to do."""

    code: str
    happens: str
    remedy: str


Whole = Annotated[int, Field(ge=1, le=1_000_000_000)]


class Limits(BaseModel):
    """Limits on callers. Each process of the server applies rates and quotas by itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    message_bytes: Annotated[
        int,
        Field(ge=LEAST_MESSAGE_BYTES, le=64 * MIB, description="Bytes of one message, after decompression."),
        Refusal("", "RESOURCE_EXHAUSTED from gRPC itself, before the message is read", "send smaller chunks"),
    ] = LEAST_MESSAGE_BYTES
    request_bytes: Annotated[
        int,
        Field(
            ge=64 << 10,
            le=4 * MIB,
            description="Bytes of one report or request for a download: it is not parsed beyond that. Other requests "
            "have limits of their own.",
        ),
        Refusal("request.bytes", "the call is refused", "send less: fewer labels or metrics"),
    ] = 256 << 10
    request_s: Annotated[
        float,
        Field(ge=1.0, le=600.0, description="Seconds from the headers of a call until its request must be whole."),
        Refusal("request.slow", "the call is refused with a time to try again, and logged", "nothing: clients do"),
    ] = 30.0
    arriving_mib_per_caller: Annotated[
        Whole,
        Field(
            description="MiB of chunks of one caller that may arrive at the same time, and a quarter as much of all "
            "other messages; each counts as the largest that the port takes."
        ),
        Refusal("request.slow", "further messages wait, until their time is over", "nothing"),
    ] = 128
    arriving_mib: Annotated[
        Whole,
        Field(
            description="MiB of chunks that may arrive at the same time at one port, and as much of all other messages."
        ),
        Refusal("request.crowded", "the caller with most of them loses its oldest; it is logged", "nothing"),
    ] = 1024
    unread_s: Annotated[
        float,
        Field(
            ge=1.0,
            le=3600.0,
            description="Seconds within which a caller must read a message sent to it; for an answer beyond "
            "`message_bytes` as many times more.",
        ),
        Refusal("stream.unread", "the caller's connection is closed, which is logged", "nothing: clients read on"),
    ] = 60.0
    unread_mib_per_caller: Annotated[
        Whole,
        Field(description="MiB of answers that one caller may leave unread, beside one answer. Streams do not count."),
        Refusal("stream.unread", "the connection of the oldest answer is closed, which is logged", "read on"),
    ] = 128
    unread_mib: Annotated[
        Whole,
        Field(description="MiB of answers that all callers of one port may leave unread. Streams do not count."),
        Refusal("stream.unread", "the caller with most of them loses its oldest, as above", "read on"),
    ] = 1024
    unread_downloads_share: Annotated[
        float,
        Field(
            ge=0.001,
            le=0.9,
            description="Share of the memory of the machine, or of the container, for chunks of downloads that callers "
            "have not read yet, in all processes together. Half of it is for callers with less than their share.",
        ),
        Refusal("download.crowded", "the stream ends with a time to try again", "nothing: clients wait, then resume"),
    ] = 0.25
    metadata_bytes: Annotated[
        int,
        Field(ge=8 << 10, le=MIB, description="Bytes of the metadata of one call (HTTP/2 accounting: 32 more each)."),
        Refusal("", "RESOURCE_EXHAUSTED from gRPC itself, for some calls above it and for all above twice it", "less"),
    ] = 16 << 10
    metadata_entries: Annotated[
        Whole,
        Field(description="Entries in the metadata of one call."),
        Refusal("request.metadata", "the call is refused", "send fewer"),
    ] = 64
    streams_per_connection: Annotated[
        int,
        Field(ge=8, le=65_536, description="Calls open at the same time on one connection."),
        Refusal("", "the caller's gRPC waits until one of its calls has ended (HTTP/2 setting)", "nothing"),
    ] = 128
    connections: Annotated[
        Whole,
        Field(description="Connections to the main port; to the transfer port of each worker as many again."),
        Refusal("", "the connection is closed at once", "raise it with the number of participants"),
    ] = 20_000
    handshake_s: Annotated[
        float,
        Field(ge=1.0, le=120.0, description="Seconds until a connection must be past TLS and HTTP/2 greetings."),
        Refusal("", "the connection is closed", "nothing"),
    ] = 20.0
    calls_per_participant: Annotated[
        Whole,
        Field(description="Calls that one participant or operator may have open at the same time."),
        Refusal("call.places", "the call is refused with a time to try again", "nothing: clients wait"),
    ] = 512
    calls_per_minute: Annotated[
        Whole,
        Field(description="Calls that one participant or operator may begin in a minute, evenly or at once."),
        Refusal("call.rate", "the call is refused, after a while, with a time to try again", "nothing: clients wait"),
    ] = 30_000
    check_ins_per_minute: Annotated[
        Whole,
        Field(description="Check-ins of one participant in a minute, streams and single calls, evenly or at once."),
        Refusal("checkin.rate", "the call is refused, after a while, with a time to try again", "nothing: they wait"),
    ] = 60
    replies_per_task: Annotated[
        Whole,
        Field(description="Answers (accepted, declined, failed) to one invitation on one check-in stream."),
        Refusal("reply.count", "the stream is broken off", "answer once, and once more if it failed"),
    ] = 8
    transfers_per_participant: Annotated[
        Whole,
        Field(description="Uploads and downloads of one participant at the same time; the ranks of a silo share them."),
        Refusal("stream.places", "the call is refused with a time to try again", "nothing: clients wait"),
    ] = 64
    uploads_per_round: Annotated[
        Whole,
        Field(description="Uploads of one participant for one attempt of a round that are begun, whole or not."),
        Refusal("upload.unfinished", "the upload is refused", "go on with an upload that was begun"),
    ] = 16
    upload_factor: Annotated[
        float,
        Field(
            ge=1.0,
            le=100.0,
            description="Payload bytes that one participant may send for one attempt of a round, as a multiple of what "
            "the round asks for needs in the encoding (at least 16 MiB): resumed uploads send some chunks twice.",
        ),
        Refusal("upload.bytes", "the upload is refused", "ask for the upload's status and send what is missing"),
    ] = 4.0
    upload_mib_per_s: Annotated[
        Whole,
        Field(description="MiB that one participant may upload in a second, all its streams together, on average."),
        Refusal("upload.rate", "the stream ends with a time to try again", "nothing: clients wait, then resume"),
    ] = 4096
    upload_gib_per_hour: Annotated[
        Whole,
        Field(description="GiB that one participant may upload in an hour."),
        Refusal("upload.quota", "the stream ends with a time to try again", "raise it, or run rounds less often"),
    ] = 2048
    download_gib_per_hour: Annotated[
        Whole,
        Field(description="GiB that one participant may download in an hour."),
        Refusal("download.quota", "the stream ends with a time to try again", "let clients keep their state directory"),
    ] = 2048
    certificates_per_lifetime: Annotated[
        Whole,
        Field(
            description="Certificates that one participant is given within one lifetime of them "
            "(`certificate_lifetime_s`): renewals, and enrolments repeated with the same key."
        ),
        Refusal("certificate.rate", "the call is refused with a time to try again", "nothing: clients wait"),
    ] = 12
    enrolment_connections: Annotated[
        Whole,
        Field(description="Connections to the enrolment port, where callers have no certificate yet."),
        Refusal("", "the address with most of them loses its oldest", "nothing: clients try again"),
    ] = 256
    enrolments_per_minute: Annotated[
        Whole,
        Field(
            description="Attempts to enrol from one address (IPv6: one /64 network) in a minute, evenly or at once; as "
            "many renewals there, and as many questions where operators sign in (`oidc.rate`)."
        ),
        Refusal("enrolment.rate", "the call is refused with a time to try again", "nothing: clients wait"),
    ] = 120
    wrong_tokens_per_hour: Annotated[
        Whole,
        Field(
            description="Join tokens from one address (IPv6: one /64 network) that do not admit, in an hour; as many "
            "tokens of operators who sign in (`oidc.guesses`)."
        ),
        Refusal("enrolment.guesses", "the call is refused with a time to try again", "wait, then use a good token"),
    ] = 60


DEFAULT_LIMITS = Limits()
