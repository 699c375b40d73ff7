"""Limits on participants, addresses and messages: ``[limits]`` of ``server.toml``.

``docs/limits.md`` is generated from this file (``python -m atoll.server.process.reference``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from atoll.wire.digest import MAX_CHUNK_BYTES

MIB = 1 << 20
GIB = 1 << 30
LEAST_MESSAGE_BYTES = MAX_CHUNK_BYTES + (64 << 10)
"""Maximum bytes of a chunk with its header."""


@dataclass(frozen=True)
class Refusal:
    """The consequence of exceeding a limit: error code (empty if not the server's), effect, and remedy."""

    code: str
    happens: str
    remedy: str


Whole = Annotated[int, Field(ge=1, le=1_000_000_000)]


class Limits(BaseModel):
    """Limits on callers. Each process of the server applies rates and quotas separately."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    message_bytes: Annotated[
        int,
        Field(ge=LEAST_MESSAGE_BYTES, le=64 * MIB, description="Maximum bytes of one message, after decompression."),
        Refusal("", "RESOURCE_EXHAUSTED from gRPC itself, before the message is read", "send smaller chunks"),
    ] = LEAST_MESSAGE_BYTES
    request_bytes: Annotated[
        int,
        Field(
            ge=64 << 10,
            le=4 * MIB,
            description="Maximum bytes of a report or a download request; larger ones are not parsed. Other requests "
            "have their own limits.",
        ),
        Refusal("request.bytes", "the call is refused", "send less: fewer labels or metrics"),
    ] = 256 << 10
    request_s: Annotated[
        float,
        Field(ge=1.0, le=600.0, description="Seconds from the headers of a call until its request must be complete."),
        Refusal("request.slow", "the call is refused with a time to try again, and logged", "nothing: clients do"),
    ] = 30.0
    arriving_mib_per_caller: Annotated[
        Whole,
        Field(
            description="MiB of one caller's chunks that may arrive concurrently, and a quarter as much of all other "
            "messages; each message counts with the maximum size that the port accepts."
        ),
        Refusal("request.slow", "further messages wait until their time is up", "nothing"),
    ] = 128
    arriving_mib: Annotated[
        Whole,
        Field(description="MiB of chunks that may arrive concurrently at one port, and as much of all other messages."),
        Refusal("request.crowded", "the caller with the most messages loses its oldest, which is logged", "nothing"),
    ] = 1024
    unread_s: Annotated[
        float,
        Field(
            ge=1.0,
            le=3600.0,
            description="Seconds within which a caller must read a message sent to it; proportionally more for an "
            "answer larger than `message_bytes`.",
        ),
        Refusal("stream.unread", "the caller's connection is closed, which is logged", "nothing: clients keep reading"),
    ] = 60.0
    unread_mib_per_caller: Annotated[
        Whole,
        Field(
            description="MiB of answers that one caller may leave unread, in addition to one answer. Streams do not "
            "count."
        ),
        Refusal("stream.unread", "the connection of the oldest answer is closed, which is logged", "read on"),
    ] = 128
    unread_mib: Annotated[
        Whole,
        Field(description="MiB of answers that all callers of one port may leave unread. Streams do not count."),
        Refusal("stream.unread", "the caller with the most unread answers loses its oldest, as above", "read on"),
    ] = 1024
    unread_downloads_share: Annotated[
        float,
        Field(
            ge=0.001,
            le=0.9,
            description="Share of the machine's or container's memory for unread chunks of downloads, in all "
            "processes together. Half of it is reserved for callers with less than their share.",
        ),
        Refusal("download.crowded", "the stream ends with a time to try again", "nothing: clients wait, then resume"),
    ] = 0.25
    metadata_bytes: Annotated[
        int,
        Field(
            ge=8 << 10, le=MIB, description="Maximum bytes of a call's metadata (HTTP/2 accounting: 32 more per entry)."
        ),
        Refusal("", "RESOURCE_EXHAUSTED from gRPC itself, for some calls above it and for all above twice it", "less"),
    ] = 16 << 10
    metadata_entries: Annotated[
        Whole,
        Field(description="Maximum entries in a call's metadata."),
        Refusal("request.metadata", "the call is refused", "send fewer"),
    ] = 64
    streams_per_connection: Annotated[
        int,
        Field(ge=8, le=65_536, description="Maximum concurrent calls on one connection."),
        Refusal("", "the caller's gRPC waits until one of its calls has ended (HTTP/2 setting)", "nothing"),
    ] = 128
    connections: Annotated[
        Whole,
        Field(description="Maximum connections to the main port, and as many to the transfer port of each worker."),
        Refusal("", "the connection is closed at once", "raise it with the number of participants"),
    ] = 20_000
    handshake_s: Annotated[
        float,
        Field(
            ge=1.0,
            le=120.0,
            description="Seconds within which a connection must complete the TLS and HTTP/2 handshakes.",
        ),
        Refusal("", "the connection is closed", "nothing"),
    ] = 20.0
    calls_per_participant: Annotated[
        Whole,
        Field(description="Maximum concurrent calls of one participant or operator."),
        Refusal("call.places", "the call is refused with a time to try again", "nothing: clients wait"),
    ] = 512
    calls_per_minute: Annotated[
        Whole,
        Field(description="Calls that one participant or operator may begin per minute, evenly spaced or all at once."),
        Refusal("call.rate", "the call is refused, after a while, with a time to try again", "nothing: clients wait"),
    ] = 30_000
    check_ins_per_minute: Annotated[
        Whole,
        Field(
            description="Check-ins of one participant per minute, streams and unary calls, evenly spaced or all at "
            "once."
        ),
        Refusal("checkin.rate", "the call is refused, after a while, with a time to try again", "nothing: they wait"),
    ] = 60
    replies_per_task: Annotated[
        Whole,
        Field(description="Answers (accepted, declined, failed) to one invitation on one check-in stream."),
        Refusal("reply.count", "the stream is ended", "answer once, and once more if it failed"),
    ] = 8
    transfers_per_participant: Annotated[
        Whole,
        Field(
            description="Maximum concurrent uploads and downloads of one participant; the ranks of a silo share them."
        ),
        Refusal("stream.places", "the call is refused with a time to try again", "nothing: clients wait"),
    ] = 64
    uploads_per_round: Annotated[
        Whole,
        Field(description="Uploads that one participant may begin for one attempt at a round, complete or not."),
        Refusal("upload.unfinished", "the upload is refused", "continue an upload that was begun"),
    ] = 16
    upload_factor: Annotated[
        float,
        Field(
            ge=1.0,
            le=100.0,
            description="Payload bytes that one participant may send for one attempt at a round, as a multiple of the "
            "update's size in the round's encoding (at least 16 MiB); resumed uploads send some chunks twice.",
        ),
        Refusal("upload.bytes", "the upload is refused", "ask for the upload's status and send the missing chunks"),
    ] = 4.0
    upload_mib_per_s: Annotated[
        Whole,
        Field(description="MiB per second that one participant may upload on average, over all its streams."),
        Refusal("upload.rate", "the stream ends with a time to try again", "nothing: clients wait, then resume"),
    ] = 4096
    upload_gib_per_hour: Annotated[
        Whole,
        Field(description="GiB per hour that one participant may upload."),
        Refusal("upload.quota", "the stream ends with a time to try again", "raise it, or run rounds less often"),
    ] = 2048
    download_gib_per_hour: Annotated[
        Whole,
        Field(description="GiB per hour that one participant may download."),
        Refusal("download.quota", "the stream ends with a time to try again", "let clients keep their state directory"),
    ] = 2048
    certificates_per_lifetime: Annotated[
        Whole,
        Field(
            description="Certificates that one participant may get within `certificate_lifetime_s`: renewals, and "
            "enrolments repeated with the same key."
        ),
        Refusal("certificate.rate", "the call is refused with a time to try again", "nothing: clients wait"),
    ] = 12
    enrolment_connections: Annotated[
        Whole,
        Field(description="Maximum connections to the enrolment port, where callers have no certificate yet."),
        Refusal("", "the address with the most connections loses its oldest", "nothing: clients try again"),
    ] = 256
    enrolments_per_minute: Annotated[
        Whole,
        Field(
            description="Attempts to enrol from one address (IPv6: one /64 network) per minute, evenly spaced or all "
            "at once; also the limit of renewals there, and of sign-in queries by operators (`oidc.rate`)."
        ),
        Refusal("enrolment.rate", "the call is refused with a time to try again", "nothing: clients wait"),
    ] = 120
    wrong_tokens_per_hour: Annotated[
        Whole,
        Field(
            description="Invalid join tokens from one address (IPv6: one /64 network) per hour; also the limit of "
            "invalid tokens of operators who sign in (`oidc.guesses`)."
        ),
        Refusal("enrolment.guesses", "the call is refused with a time to try again", "wait, then use a valid token"),
    ] = 60


DEFAULT_LIMITS = Limits()
