"""A gRPC caller on HTTP/2 frames, which can hold back parts of messages and leave answers unread."""

from __future__ import annotations

import base64
import contextlib
import select
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, RemoteSettingsChanged, ResponseReceived, StreamReset, TrailersReceived
from h2.settings import SettingCodes, Settings

from atoll.wire.status import ERROR_TRAILER, detail_from_trailers
from tests.patience import WAIT_S

_READ_BYTES = 1 << 18
_WINDOW_BYTES = 65_535
"""Bytes of an answer that a server may send before they are read (RFC 9113, 6.9.2)."""
_LEAVE_BYTES = 1 << 20


@dataclass
class Call:
    """One call and its outcome.

    Attributes:
        stream: number of its HTTP/2 stream.
        to_send: announced bytes of its request that are not sent yet.
        ended: whether the server has ended it.
        code: code of the error that it ended with, from the server's detail or else gRPC's status.
        received_bytes: of answers, with their frames.
        reads: whether its answers count as read.
    """

    stream: int
    to_send: bytes = b""
    ended: bool = False
    code: str = ""
    received_bytes: int = 0
    reads: bool = True


class Http2:
    """One connection. Incoming data is taken from it, but without ``reads`` the flow-control window is not extended.

    Args:
        connection: past TLS, if there is any.
        reads: whether answers count as read.
        window_bytes: bytes that the server may send of each answer before it is read.
    """

    def __init__(self, connection: socket.socket, *, reads: bool = True, window_bytes: int = _WINDOW_BYTES) -> None:
        self.closed = False
        self._socket = connection
        self._reads = reads
        self._calls: dict[int, Call] = {}
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.local_settings = Settings(initial_values={SettingCodes.INITIAL_WINDOW_SIZE: window_bytes})
        self._h2.initiate_connection()
        self._flush()
        self._take_until(lambda events: any(isinstance(event, RemoteSettingsChanged) for event in events), WAIT_S)

    @classmethod
    def secure(
        cls,
        address: str,
        ca: str,
        key: str = "",
        certificate: str = "",
        *,
        reads: bool = True,
        source: str = "",
        window_bytes: int = _WINDOW_BYTES,
    ) -> Http2:
        """Connect over TLS, optionally with a certificate (PEM), from the local address ``source``."""
        context = ssl.create_default_context(cadata=ca)
        context.check_hostname = False
        context.set_alpn_protocols(["h2"])
        if key:
            with tempfile.TemporaryDirectory() as folder:
                pair = Path(folder) / "pair.pem"
                pair.write_text(key + certificate)
                context.load_cert_chain(pair)
        return cls(context.wrap_socket(_dial(address, source)), reads=reads, window_bytes=window_bytes)

    @classmethod
    def plain(cls, address: str, *, reads: bool = True) -> Http2:
        """Without TLS."""
        return cls(_dial(address), reads=reads)

    def call(
        self, method: str, message: bytes = b"", metadata: Iterable[tuple[str, str]] = (), *, ends: bool = True
    ) -> Call:
        """Begin a call with a whole request, which is its last one if it ``ends``."""
        return self._begin(method, _framed(message), metadata, ends=ends, sent=True)

    def read(self, call: Call) -> None:
        """Count the answers of a call as read from now on."""
        call.reads = True
        self._h2.increment_flow_control_window(_LEAVE_BYTES, call.stream)
        self._flush()

    def half_call(self, method: str, size: int, metadata: Iterable[tuple[str, str]] = ()) -> Call:
        """Begin a call whose request announces this many bytes; ``push`` sends all but the last byte."""
        return self._begin(method, _framed(bytes(size))[:-1], metadata, ends=False, sent=False)

    def push(self, quiet_s: float = 0.5) -> None:
        """Send announced bytes, until the server has not extended the window for ``quiet_s``."""
        moved = time.monotonic()
        while time.monotonic() - moved < quiet_s and not self.closed:
            sent = [self._send_some(call) for call in self._calls.values()]
            if any(sent):
                moved = time.monotonic()
            self.take(0.01)

    def take(self, wait_s: float) -> None:
        """Take the next data, waiting at most this long."""
        self._take_until(bool, wait_s)

    def until_ended(self, calls: Sequence[Call]) -> None:
        """Wait until these calls, or the connection, have ended."""
        until = time.monotonic() + WAIT_S
        while not self.closed and any(not call.ended for call in calls):
            assert time.monotonic() < until, f"{sum(not call.ended for call in calls)} of {len(calls)} calls are open"
            self.take(0.1)

    def until_closed(self) -> None:
        """Wait until the server has closed the connection."""
        until = time.monotonic() + WAIT_S
        while not self.closed:
            assert time.monotonic() < until, "the connection is open"
            self.take(0.1)

    def close(self) -> None:
        """Close the connection."""
        self.closed = True
        self._socket.close()

    def _begin(
        self, method: str, framed: bytes, metadata: Iterable[tuple[str, str]], *, ends: bool, sent: bool
    ) -> Call:
        stream = self._h2.get_next_available_stream_id()
        pseudo = [(":method", "POST"), (":scheme", "https"), (":path", method), (":authority", "localhost")]
        self._h2.send_headers(stream, [*pseudo, ("te", "trailers"), ("content-type", "application/grpc"), *metadata])
        call = self._calls[stream] = Call(stream, framed, reads=self._reads)
        if sent:
            self._h2.send_data(stream, framed, end_stream=ends)
            call.to_send = b""
        self._flush()
        return call

    def _send_some(self, call: Call) -> bool:
        if call.ended or not call.to_send or self.closed:
            return False
        size = min(self._h2.local_flow_control_window(call.stream), self._h2.max_outbound_frame_size)
        if size > 0:
            self._h2.send_data(call.stream, call.to_send[:size])
            call.to_send = call.to_send[size:]
            self._flush()
        return size > 0

    def _take_until(self, enough: Callable[[list[Event]], bool], wait_s: float) -> None:
        until = time.monotonic() + wait_s
        while not self.closed:
            pending = self._socket.pending() if isinstance(self._socket, ssl.SSLSocket) else 0
            if not pending and not select.select([self._socket], [], [], max(0.0, until - time.monotonic()))[0]:
                return
            data = b""
            with contextlib.suppress(OSError):
                data = self._socket.recv(_READ_BYTES)
            if not data:
                self.close()
                return
            events = self._h2.receive_data(data)
            for event in events:
                self._heed(event)
            self._flush()
            if enough(events):
                return

    def _heed(self, event: Event) -> None:
        if isinstance(event, ResponseReceived | TrailersReceived):
            headers = {str(name): str(value) for name, value in event.headers or ()}
            if "grpc-status" in headers:
                call = self._calls[event.stream_id]
                call.ended, call.code = True, _code_of(headers)
        elif isinstance(event, DataReceived):
            call = self._calls[event.stream_id]
            call.received_bytes += len(event.data or b"")
            if call.reads:
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamReset) and event.error_code != ErrorCodes.NO_ERROR:
            self._calls[event.stream_id].ended = True

    def _flush(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(self._h2.data_to_send())


def _dial(address: str, source: str = "") -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), WAIT_S, (source, 0) if source else None)


def _framed(message: bytes) -> bytes:
    """A message in gRPC's wire format: uncompressed flag, length, content."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def _code_of(headers: dict[str, str]) -> str:
    raw = headers.get(ERROR_TRAILER)
    detail = None
    if raw is not None:
        detail = detail_from_trailers([(ERROR_TRAILER, base64.b64decode(raw + "=" * (-len(raw) % 4)))])
    return headers["grpc-status"] if detail is None else detail.code
