"""Identifies callers by the certificate of their connection, and keeps checking them while a long stream is open."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc.aio
from google.protobuf.message import Message

from atoll.server.access.oidc import TokenEndedError
from atoll.server.errors import ForbiddenError, LimitExceededError, UnauthenticatedError, UnavailableError
from atoll.server.identity import OperatorRole, Peer, Rights, Role, check_participant_id, fingerprint_of
from atoll.server.ingest.coordinator_api import Caller, CoordinatorApi
from atoll.server.rpc.admission import Admission
from atoll.server.rpc.connections import Connections
from atoll.server.rpc.open_calls import OpenCalls
from atoll.server.rpc.peers import network_of
from atoll.server.telemetry.context import remember
from atoll.server.telemetry.refusal_log import RefusalLog
from atoll.wire.loopback import INSECURE_OPERATOR, INSECURE_PARTICIPANT
from atoll.wire.status import Recovery

log = logging.getLogger(__name__)

M = TypeVar("M", bound=bytes | Message)
Context = grpc.aio.ServicerContext[Any, Any]

REVOCATION_CHECK_S = 1.0
IDLE_S = 60.0
"""Seconds without a message after which a stream is ended; messages received before are kept."""
LEAST_BYTES_PER_S = 1024
"""A stream that delivers fewer bytes per second over ``IDLE_S`` seconds of waiting is also ended."""
WANTED_CHECK_S = 2.0
"""Seconds between two checks whether the round still accepts an open upload."""
FORWARDED = "atoll-caller-bin"
"""Metadata key of a call that a standby passes on: the certificate that the caller has proved to the standby."""
_OUR_SERVICES = "/atoll."
_ROLES = {
    Role.OPERATOR: "an operator",
    Role.PARTICIPANT: "a participant",
    Role.AGGREGATOR: "an aggregator",
    Role.SERVER: "a server",
}
_GATEWAY_ROLES = frozenset({Role.AGGREGATOR, Role.SERVER})
_GATEWAY_FACTOR = 64
"""Factor by which a gateway's limit on calls exceeds that of one caller, since it calls for its participants."""


class Authenticator:
    """Identifies callers by certificate, through the coordinator; with ``insecure`` (loopback only), by metadata.

    ``enter`` runs before a call's request is received. It counts the call against its caller's limits, and registers it
    so that a revocation ends it (``calls``).

    Attributes:
        admission: the limits of each caller.
        connections: the connections of its port.
        calls: the open calls of its port.
        origin: returns the peer that a call originates from, given its immediate peer.
    """

    def __init__(
        self,
        coordinator: CoordinatorApi,
        admission: Admission,
        *,
        insecure: bool,
        origin: Callable[[str], str] = str,
    ) -> None:
        self.admission = admission
        self.origin = origin
        self.connections = Connections()
        self.calls = OpenCalls(self.connections)
        self._coordinator = coordinator
        self._insecure = insecure
        self._refusals = RefusalLog(log)
        limits = admission.limits
        wider = {
            name: getattr(limits, name) * _GATEWAY_FACTOR
            for name in ("calls_per_minute", "calls_per_participant", "transfers_per_participant")
        }
        self._gateways = Admission(limits.model_copy(update=wider))

    async def enter(self, method: str, context: Context) -> str:
        """Admit a call, and return the caller's name, which it is counted for.

        Calls of gRPC's own services (health, reflection) are counted for the caller's address.

        Raises:
            UnauthenticatedError: if the caller has no valid certificate.
            LimitExceededError: if the caller makes too many calls.
        """
        if not method.startswith(_OUR_SERVICES):
            return network_of(self.origin(context.peer()))
        caller = await self.identify(context)
        self.calls.begin(caller, context)
        await (self._gateways if caller.role in _GATEWAY_ROLES else self.admission).call(caller.name, context)
        return caller.name

    async def identify(self, context: Context) -> Caller:
        """The caller of this RPC; the log names it from now on.

        Raises:
            UnauthenticatedError: if the caller has no valid certificate.
        """
        found = await self._found(context)
        remember(**{found.role.value: found.name})
        return found

    async def _found(self, context: Context) -> Caller:
        if self._insecure:
            return self._from_metadata(context)
        return await self._coordinator.identify(certificate_of(context))

    def credential(self, context: Context) -> str:
        """The credential by which an identified caller proved its name, for the audit log."""
        return "insecure" if self._insecure else f"certificate {fingerprint_of(certificate_of(context))[:16]}"

    async def participant(self, context: Context) -> str:
        """The calling participant's id.

        Raises:
            UnauthenticatedError: if the caller has no valid certificate.
            ForbiddenError: for an operator's certificate.
        """
        return await self._require(context, Role.PARTICIPANT)

    async def aggregator(self, context: Context) -> str:
        """The calling aggregator's id.

        Raises:
            UnauthenticatedError: if the caller has no valid certificate.
            ForbiddenError: for a participant's or operator's certificate.
        """
        return await self._require(context, Role.AGGREGATOR)

    async def gateway(self, context: Context) -> Caller:
        """The calling gateway: an aggregator or a standby. Raises what ``aggregator`` raises."""
        caller = await self.identify(context)
        return caller if caller.role is Role.SERVER else Caller(Role.AGGREGATOR, await self.aggregator(context))

    async def enrolled(self, context: Context) -> str:
        """The id of the calling participant or aggregator. Raises what ``participant`` raises."""
        caller = await self.identify(context)
        return caller.name if caller.role is Role.AGGREGATOR else await self.participant(context)

    async def operator(self, context: Context) -> str:
        """The calling operator's name.

        Raises:
            UnauthenticatedError: if the caller has no valid certificate.
            ForbiddenError: for a participant's certificate.
        """
        return await self._require(context, Role.OPERATOR)

    async def _require(self, context: Context, role: Role) -> str:
        caller = await self.identify(context)
        if caller.role is not role:
            error = ForbiddenError(
                "certificate.role",
                f"this call needs {_ROLES[role]}'s certificate; {caller.name} is {_ROLES[caller.role]}",
                f"connect with the credential of {_ROLES[role]}",
                recovery=Recovery.ENROL,
            )
            self._refusals.warn(caller.name, error)
            raise error
        return caller.name

    def _from_metadata(self, context: Context) -> Caller:
        metadata = dict(context.invocation_metadata() or ())
        if INSECURE_OPERATOR in metadata:
            return Caller(Role.OPERATOR, "insecure", Rights(OperatorRole.ADMINISTRATOR))
        name = str(metadata.get(INSECURE_PARTICIPANT, ""))
        if not name:
            raise UnauthenticatedError(
                "insecure.participant", f"no {INSECURE_PARTICIPANT} metadata", "start the client with --insecure"
            )
        return Caller(Role.PARTICIPANT, check_participant_id(name))


def certificate_of(context: Context) -> bytes:
    """The certificate (PEM) whose key the caller proved in the TLS handshake, here or at another server.

    Raises:
        UnauthenticatedError: if there is none, or a caller that is not a server passes one on.
    """
    pems = list(context.auth_context().get("x509_pem_cert", ()))
    if not pems:
        raise UnauthenticatedError("certificate.missing", "no client certificate", "enrol with a join token first")
    pem = bytes(pems[0])
    forwarded = dict(context.invocation_metadata() or ()).get(FORWARDED)
    if not isinstance(forwarded, bytes):
        return pem
    peer = Peer.from_pem(pem)  # TLS has verified that the authority signed it
    if peer.role is not Role.SERVER or peer.not_after <= time.time():
        raise UnauthenticatedError(
            "certificate.forwarded", f"{peer.name} may not pass calls of others on", "call for yourself"
        )
    return forwarded


class Watch:
    """Checks repeatedly that the caller of a long stream is still admitted and the stream still wanted."""

    def __init__(self, authenticator: Authenticator, context: Context) -> None:
        self._authenticator = authenticator
        self._context = context
        self._checked = self._asked = time.monotonic()
        self._wanted: Callable[[], Awaitable[object]] | None = None

    def only_while(self, wanted: Callable[[], Awaitable[object]]) -> None:
        """Make ``check`` also call this every ``WANTED_CHECK_S``; it raises once the stream is no longer wanted."""
        self._wanted = wanted

    async def check(self) -> None:
        """Check the caller's certificate, unless the last check was less than ``REVOCATION_CHECK_S`` ago.

        Raises:
            UnauthenticatedError: if the caller's certificate is no longer valid.
            ServerError: what the function given to ``only_while`` raises.
        """
        now = time.monotonic()
        if now - self._checked >= REVOCATION_CHECK_S:
            self._checked = now
            try:
                await self._authenticator.identify(self._context)
            except TokenEndedError as error:
                raise UnavailableError(
                    "oidc.ended", error.detail.message, "continue in a new call with a new token", retry_after_s=0.1
                ) from error
        if self._wanted is not None and now - self._asked >= WANTED_CHECK_S:
            self._asked = now
            await self._wanted()

    async def until(self, event: asyncio.Event) -> None:
        """Wait for an event while the caller is admitted.

        Raises:
            UnauthenticatedError: if the caller's certificate is no longer valid.
        """
        coming = asyncio.create_task(event.wait())
        try:
            while not (await asyncio.wait({coming}, timeout=REVOCATION_CHECK_S))[0]:
                await self.check()
            await self.check()
        finally:
            coming.cancel()

    async def over(self, requests: AsyncIterator[M], idle_s: float = IDLE_S) -> AsyncGenerator[M, None]:
        """Yield the messages of a stream while its caller is admitted; also checks while waiting for a message.

        Raises:
            UnauthenticatedError: if the caller's certificate is no longer valid.
            UnavailableError: if nothing arrives for ``idle_s`` seconds.
            LimitExceededError: if it delivers less than ``LEAST_BYTES_PER_S`` over ``idle_s`` seconds of waiting.
            ServerError: what the function given to ``only_while`` raises.
        """
        messages = aiter(requests)
        waited_s, received = 0.0, 0
        while True:
            since = time.monotonic()
            coming = asyncio.ensure_future(anext(messages, None))
            try:
                await self._wait(coming, idle_s)
                message = coming.result()
            finally:
                coming.cancel()
            if message is None:
                return
            waited_s += time.monotonic() - since
            received += len(message) if isinstance(message, bytes) else message.ByteSize()
            if waited_s >= idle_s:
                _check_pace(received, waited_s)
                waited_s, received = 0.0, 0
            await self.check()
            yield message
            del message, coming

    async def _wait(self, coming: asyncio.Future[Any], idle_s: float) -> None:
        until = time.monotonic() + idle_s
        while not (await asyncio.wait({coming}, timeout=min(idle_s, REVOCATION_CHECK_S)))[0]:
            await self.check()
            if time.monotonic() >= until:
                raise UnavailableError(
                    "stream.idle", f"nothing came for {idle_s:g} s", "continue in a new stream", retry_after_s=1.0
                )


def _check_pace(received: int, waited_s: float) -> None:
    if received < waited_s * LEAST_BYTES_PER_S:
        raise LimitExceededError(
            "stream.slow",
            f"{received} bytes came in {waited_s:.3g} s of waiting: at least {LEAST_BYTES_PER_S} bytes/s are needed",
            "continue in a new stream over a faster connection",
            retry_after_s=1.0,
        )
