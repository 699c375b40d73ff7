"""Channels to the server: mutual TLS, or plaintext to loopback if the user asks for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import grpc

from atoll.client.errors import UsageError
from atoll.wire.loopback import INSECURE_PARTICIPANT, is_loopback
from atoll.wire.pacing import PING_ANSWER_S, PING_S, participant_ping_ms

if TYPE_CHECKING:
    from atoll.client._connection.identity import Identity

MAX_MESSAGE_BYTES = 64 << 20  # fits the manifest of 2 TB in 1 MiB chunks; chunks are at most 4 MiB
_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.lookahead_bytes", 8 << 20),
    ("grpc.http2.max_frame_size", 256 << 10),  # for large messages: the default is 16 KiB
    ("grpc.use_local_subchannel_pool", 1),  # the session's own back-off, not a shared one, controls retries
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
# Without this option gRPC waits 60 s for the answer to a ping, despite the keepalive time-out. Transfers keep the 60 s:
# over a slow line the answers queue behind their data, and transfers are watched for stalls.
_CHECK_IN_OPTIONS: tuple[tuple[str, int | str], ...] = (
    *_OPTIONS,
    ("grpc.http2.ping_timeout_ms", round(1000 * PING_ANSWER_S)),
)


@dataclass(frozen=True)
class Endpoint:
    """The server's address, and the identity to use there.

    ``identity`` is None for plaintext (loopback only), where ``name`` is the participant id to claim. ``ping_s`` is the
    server's interval of keepalive pings; channels to it ping a little more often.

    Raises:
        UsageError: for plaintext to an address that is not loopback, or without a name.
    """

    address: str
    identity: Identity | None = None
    name: str = ""
    ping_s: float = PING_S

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(f"server address {self.address!r}: expected host:port, for example fl.example.org:7400")
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
        """Identifies the federation independently of the address: its CA's fingerprint; without TLS the address."""
        return self.address if self.identity is None else self.identity.authority

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata to send with each call."""
        return () if self.identity is not None else ((INSECURE_PARTICIPANT, self.name),)

    def at(self, address: str) -> Endpoint:
        """The same identity at another address."""
        return replace(self, address=address)

    @property
    def _pings(self) -> tuple[tuple[str, int], ...]:
        return (("grpc.keepalive_time_ms", participant_ping_ms(self.ping_s)),)

    def open_async(self) -> grpc.aio.Channel:
        """A channel for the event loop, for check-in; it detects an unreachable server within ``ping_s`` + 10 s."""
        options = (*_CHECK_IN_OPTIONS, *self._pings)
        if self.identity is None:
            return grpc.aio.insecure_channel(self.address, options=options)
        return grpc.aio.secure_channel(self.address, self.identity.credentials(), options=options)

    def open(self) -> grpc.Channel:
        """A channel for threads."""
        options = (*_OPTIONS, *self._pings)
        if self.identity is None:
            return grpc.insecure_channel(self.address, options=options)
        return grpc.secure_channel(self.address, self.identity.credentials(), options=options)
