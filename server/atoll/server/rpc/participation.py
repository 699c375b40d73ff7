"""ParticipationService: one check-in stream per participant, over which instructions are pushed, or unary calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
import grpc.aio

import atoll.server
from atoll.server.errors import InvalidRequestError
from atoll.server.ingest.transfer_meter import TransferMeter
from atoll.server.rpc.admission import Replies
from atoll.server.rpc.authentication import Authenticator, Context
from atoll.server.rpc.check_in_api import CheckInApi
from atoll.server.rpc.introductions import bounded, introduction_of
from atoll.server.rpc.return_gate import ReturnGate
from atoll.server.rpc.sending_room import SendingRoom
from atoll.server.rpc.unary_check_in import UnaryCheckIns
from atoll.server.runs.instructions import Instruction, Invitation, UnaryAnswer, serialised
from atoll.server.runs.session import ComeBack, Introduction, Session, come_back
from atoll.server.runs.sessions import Sessions
from atoll.server.telemetry.refusal_log import one_line
from atoll.wire.digest import DEFAULT_CHUNK_BYTES
from atoll.wire.messages import PROTOCOL
from atoll.wire.pacing import PING_S
from atoll.wire.v1 import participation_pb2

log = logging.getLogger(__name__)

SERVICE = "atoll.wire.v1.ParticipationService"
HELLO_S = 10.0
"""Seconds within which a stream must send its hello."""


class ParticipationService:
    """The handlers of check-ins."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        coordinator: CheckInApi,
        authenticator: Authenticator,
        transfer_address: str,
        meter: TransferMeter,
        takes_unary: bool = True,
        ping_s: float = PING_S,
    ) -> None:
        self._sessions = sessions
        self._coordinator = coordinator
        self._authenticator = authenticator
        self._transfer_address = transfer_address
        self._meter = meter
        self._sending = SendingRoom()
        self._gate = ReturnGate(sessions.pace)
        self._takes_unary = takes_unary
        self._ping_s = ping_s
        self._unary = UnaryCheckIns(sessions, coordinator, authenticator, self._gate, self._sending, self._welcome)

    def handler(self) -> grpc.GenericRpcHandler:
        """The handlers to register with gRPC; an invitation's parts are joined when it is sent."""
        check_in: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
            self.CheckIn,
            request_deserializer=participation_pb2.CheckInRequest.FromString,
            response_serializer=serialised,
        )
        once: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
            self._unary.CheckInOnce if self._takes_unary else _refuse_unary,
            request_deserializer=participation_pb2.CheckInOnceRequest.FromString,
            response_serializer=UnaryAnswer.serialised,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"CheckIn": check_in, "CheckInOnce": once})

    async def CheckIn(
        self, request_iterator: AsyncIterator[participation_pb2.CheckInRequest], context: Context
    ) -> AsyncIterator[Instruction]:
        """Push instructions until the participant leaves or its session is closed."""
        participant = await self._authenticator.participant(context)
        project = await self._coordinator.project_of(participant)
        self._gate.admit(participant, project, at_work=self._coordinator.expects(participant))
        await self._authenticator.admission.check_in(participant)
        introduction = await _introduction(request_iterator)
        membership = await self._coordinator.introduced(participant, introduction)
        # the hello may have come long after the call: no await between this check and the session
        await self._authenticator.identify(context)
        session = self._sessions.connect(
            participant, introduction, lambda: self._sessions.disconnect(session), membership
        )
        known = {"participant": participant}
        log.debug("connected, client version %s", one_line(introduction.client_version) or "unknown", extra=known)
        expiry = self._close_at_expiry(session)
        reader = asyncio.create_task(self._read(request_iterator, session))
        self._meter.check_ins_open += 1
        try:
            yield participation_pb2.CheckInResponse(welcome=self._welcome(session))
            while (message := await session.outbox.get()) is not None:
                if isinstance(message, Invitation):
                    async with self._sending.hold(message.size):
                        yield message
                else:
                    yield message
            if reader.done():
                reader.result()
        finally:
            self._meter.check_ins_open -= 1
            self._sessions.disconnect(session)
            log.debug("disconnected", extra=known)
            expiry.cancel()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def _close_at_expiry(self, session: Session) -> asyncio.TimerHandle:
        """Close the stream when the certificate expires; a participant that has renewed its certificate reconnects."""
        remaining_s = self._coordinator.certificate_remaining_s(session.participant)

        def expire() -> None:
            session.close(come_back(ComeBack.CAUSE_CERTIFICATE, 0.0, "the certificate of this connection has expired"))

        timer = asyncio.get_running_loop().call_later(max(0.0, remaining_s), expire)
        if remaining_s < 0:  # unknown: without TLS
            timer.cancel()
        return timer

    def _welcome(self, session: Session) -> participation_pb2.Welcome:
        sessions, pace = self._sessions, self._sessions.pace.of(session.project)
        return participation_pb2.Welcome(
            participant=session.participant,
            protocol=PROTOCOL,
            server_version=atoll.server.__version__,
            transfer_address=self._transfer_address,
            certificate_remaining_s=self._coordinator.certificate_remaining_s(session.participant),
            chunk_bytes=DEFAULT_CHUNK_BYTES,
            return_spread_s=max(sessions.return_spread_s, pace.return_spread_s),
            ping_s=self._ping_s,
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
                await self._coordinator.replied(session.participant, bounded(request.reply))
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


async def _refuse_unary(_: participation_pb2.CheckInOnceRequest, context: Context) -> NoReturn:
    """Refuse unary check-ins at an aggregator, which does not know when runs need a participant."""
    del context
    raise InvalidRequestError(
        "checkin.unary",
        "an aggregator takes participants with streams only",
        "start the client with --check-in stream, or without the aggregator",
    )
