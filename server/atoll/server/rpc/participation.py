"""ParticipationService: one check-in stream per participant, instructions pushed over it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from types import MappingProxyType
from typing import Any, Protocol

import grpc
import grpc.aio

import atoll.server
from atoll.server.errors import InvalidRequestError
from atoll.server.rpc.admission import Replies
from atoll.server.rpc.authentication import Authenticator, Context
from atoll.server.rpc.sending_room import SendingRoom
from atoll.server.runs.instructions import Instruction, Invitation, serialised
from atoll.server.runs.sessions import ComeBack, Introduction, Session, Sessions, come_back
from atoll.server.telemetry.refusal_log import one_line
from atoll.text.printable import printable
from atoll.wire.digest import DEFAULT_CHUNK_BYTES
from atoll.wire.encoding import Encoding
from atoll.wire.messages import PROTOCOL
from atoll.wire.v1 import participation_pb2

log = logging.getLogger(__name__)

SERVICE = "atoll.wire.v1.ParticipationService"
MAX_LABELS = 32
MAX_LABEL_CHARS = 256
MAX_REASON_CHARS = 1024
MAX_EXAMPLES = 2**40
MAX_RESUMING = 64
HELLO_S = 10.0
"""Seconds within which a stream must say hello."""


class CheckInApi(Protocol):
    """Handles what participants say on their check-in streams."""

    async def introduced(self, participant: str, introduction: Introduction) -> str:
        """The participant checks in; returns its organisation."""
        ...

    async def replied(self, participant: str, reply: participation_pb2.TaskReply) -> None:
        """The participant accepted, declined or failed."""
        ...

    def certificate_remaining_s(self, participant: str) -> float:
        """Seconds until the participant's certificate ends; negative if unknown."""
        ...


class ParticipationService:
    """The handler of the check-in stream."""

    def __init__(
        self, *, sessions: Sessions, coordinator: CheckInApi, authenticator: Authenticator, transfer_address: str
    ) -> None:
        self._sessions = sessions
        self._coordinator = coordinator
        self._authenticator = authenticator
        self._transfer_address = transfer_address
        self._sending = SendingRoom()

    def handler(self) -> grpc.GenericRpcHandler:
        """The handlers to register with gRPC; the parts of an invitation are joined when it is sent."""
        check_in: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
            self.CheckIn,
            request_deserializer=participation_pb2.CheckInRequest.FromString,
            response_serializer=serialised,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"CheckIn": check_in})

    async def CheckIn(
        self, request_iterator: AsyncIterator[participation_pb2.CheckInRequest], context: Context
    ) -> AsyncIterator[Instruction]:
        """Push instructions until the participant leaves or its session is closed."""
        participant = await self._authenticator.participant(context)
        await self._authenticator.admission.check_in(participant)
        introduction = await _introduction(request_iterator)
        organisation = await self._coordinator.introduced(participant, introduction)
        # The hello may have come long after the call: no await between this and the session.
        await self._authenticator.identify(context)
        session = self._sessions.connect(
            participant, introduction, lambda: self._sessions.disconnect(session), organisation
        )
        known = {"participant": participant}
        log.debug("connected, client version %s", one_line(introduction.client_version) or "unknown", extra=known)
        expiry = self._close_at_expiry(session)
        reader = asyncio.create_task(self._read(request_iterator, session))
        try:
            yield self._welcome(participant)
            while (message := await session.outbox.get()) is not None:
                if isinstance(message, Invitation):
                    async with self._sending.hold(message.size):
                        yield message
                else:
                    yield message
            if reader.done():
                reader.result()
        finally:
            self._sessions.disconnect(session)
            log.debug("disconnected", extra=known)
            expiry.cancel()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def _close_at_expiry(self, session: Session) -> asyncio.TimerHandle:
        """Close the stream when the certificate expires; a participant that has renewed it connects again."""
        remaining_s = self._coordinator.certificate_remaining_s(session.participant)

        def expire() -> None:
            session.close(come_back(ComeBack.CAUSE_CERTIFICATE, 0.0, "the certificate of this connection has expired"))

        timer = asyncio.get_running_loop().call_later(max(0.0, remaining_s), expire)
        if remaining_s < 0:  # unknown: without TLS
            timer.cancel()
        return timer

    def _welcome(self, participant: str) -> participation_pb2.CheckInResponse:
        return participation_pb2.CheckInResponse(
            welcome=participation_pb2.Welcome(
                participant=participant,
                protocol=PROTOCOL,
                server_version=atoll.server.__version__,
                transfer_address=self._transfer_address,
                certificate_remaining_s=self._coordinator.certificate_remaining_s(participant),
                chunk_bytes=DEFAULT_CHUNK_BYTES,
                return_spread_s=self._sessions.return_spread_s,
            )
        )

    async def _read(self, requests: AsyncIterator[participation_pb2.CheckInRequest], session: Session) -> None:
        admission, replies = self._authenticator.admission, Replies(self._authenticator.admission.limits)
        try:
            async for request in requests:
                if request.WhichOneof("message") != "reply":
                    raise InvalidRequestError("checkin.order", "after hello only replies are expected on this stream")
                key = request.reply.key
                replies.count((key.run, key.round, key.attempt))
                admission.reply(session.participant)
                request.reply.reason = printable(request.reply.reason[:MAX_REASON_CHARS])
                await self._coordinator.replied(session.participant, request.reply)
        finally:
            session.close()


async def _introduction(requests: AsyncIterator[participation_pb2.CheckInRequest]) -> Introduction:
    try:
        async with asyncio.timeout(HELLO_S):
            first = await anext(aiter(requests), None)
    except TimeoutError:
        first = None
    if first is None or first.WhichOneof("message") != "hello":
        raise InvalidRequestError("checkin.order", "the first message of a check-in stream must be hello")
    return introduction_of(first.hello)


def introduction_of(hello: participation_pb2.Hello) -> Introduction:
    """What a participant declares in its hello, within bounds.

    Raises:
        InvalidRequestError: for a value that is out of bounds.
    """
    if hello.protocol < 1:
        raise InvalidRequestError("checkin.protocol", f"protocol {hello.protocol}: this server speaks {PROTOCOL}")
    _check_bounds(hello)
    return Introduction(
        examples=hello.examples,
        encodings=frozenset(item for item in Encoding if int(item) in {int(number) for number in hello.encodings}),
        can_evaluate=hello.can_evaluate,
        client_version=printable(hello.client_version[:64]),
        labels=MappingProxyType({printable(name): printable(value) for name, value in hello.labels.items()}),
        resuming=frozenset((key.run, key.round, key.attempt) for key in hello.resuming),
    )


def _check_bounds(hello: participation_pb2.Hello) -> None:
    if hello.examples > MAX_EXAMPLES:
        raise InvalidRequestError("checkin.examples", f"examples {hello.examples}: at most {MAX_EXAMPLES}")
    if len(hello.resuming) > MAX_RESUMING:
        raise InvalidRequestError("checkin.resuming", f"{len(hello.resuming)} rounds in work: at most {MAX_RESUMING}")
    too_long = [name[:40] for name, value in hello.labels.items() if len(name) + len(value) > MAX_LABEL_CHARS]
    if len(hello.labels) > MAX_LABELS or too_long:
        raise InvalidRequestError(
            "checkin.labels",
            f"at most {MAX_LABELS} labels of at most {MAX_LABEL_CHARS} characters; over: {too_long[:3]}",
        )
