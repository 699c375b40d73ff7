"""Channels to the server: TLS by certificate, or plaintext to loopback when asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from atoll.client.errors import UsageError
from atoll.wire.loopback import INSECURE_PARTICIPANT, is_loopback

if TYPE_CHECKING:
    from atoll.client.identity import Identity

MAX_MESSAGE_BYTES = 64 << 20  # a manifest of 2 TB in 1 MiB chunks; chunks themselves are at most 4 MiB
_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.lookahead_bytes", 8 << 20),
    ("grpc.http2.max_frame_size", 256 << 10),  # for large messages: 16 KiB unless told
    ("grpc.use_local_subchannel_pool", 1),  # our own back-off decides when to try again, not one shared in the process
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
# Without it gRPC gives pings 60 s, whatever keepalive says. Transfers keep that: over a slow line the answers queue
# behind their data, and they are watched for stalls anyway.
_CHECK_IN_OPTIONS: tuple[tuple[str, int | str], ...] = (*_OPTIONS, ("grpc.http2.ping_timeout_ms", 10_000))


@dataclass(frozen=True)
class Endpoint:
    """Where the server is and who we are there.

    ``identity`` is None for plaintext, where ``name`` is the participant id that we claim (loopback only).

    Raises:
        UsageError: for plaintext to an address that is not loopback, or without a name.
    """

    address: str
    identity: Identity | None = None
    name: str = ""

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(f"server address {self.address!r}: expected host:port")
        if self.identity is not None:
            return
        if not is_loopback(host):
            raise UsageError(
                f"server address {self.address!r} is not loopback: without TLS only 127.0.0.1, ::1 and localhost are "
                "allowed; enrol with a join token instead"
            )
        if not self.name:
            raise UsageError("without TLS a participant name is needed (--participant NAME)")

    @property
    def federation(self) -> str:
        """What stays the same of a server wherever it is reached: its authority's fingerprint; else its address."""
        return self.address if self.identity is None else self.identity.authority

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What each call carries besides its message."""
        return () if self.identity is not None else ((INSECURE_PARTICIPANT, self.name),)

    def at(self, address: str) -> Endpoint:
        """The same identity at another address."""
        return Endpoint(address, self.identity, self.name)

    def open_async(self) -> grpc.aio.Channel:
        """A channel for the event loop, for check-in: it notices within 20 s that the server is gone without a word."""
        if self.identity is None:
            return grpc.aio.insecure_channel(self.address, options=_CHECK_IN_OPTIONS)
        return grpc.aio.secure_channel(self.address, self.identity.credentials(), options=_CHECK_IN_OPTIONS)

    def open(self) -> grpc.Channel:
        """A channel for threads."""
        if self.identity is None:
            return grpc.insecure_channel(self.address, options=_OPTIONS)
        return grpc.secure_channel(self.address, self.identity.credentials(), options=_OPTIONS)
