"""Who is calling, from the client certificate of the connection."""

from __future__ import annotations

import time
from typing import Any

import grpc.aio

from atoll.server.errors import ForbiddenError, UnauthenticatedError
from atoll.server.identity import Role, check_participant_id
from atoll.server.ingest.desk import Caller, Desk

INSECURE_PARTICIPANT = "atoll-insecure-participant"
INSECURE_OPERATOR = "atoll-insecure-operator"

Context = grpc.aio.ServicerContext[Any, Any]


REVOCATION_CHECK_S = 1.0


class Authenticator:
    """Asks the desk who holds the peer's certificate; with ``insecure`` (loopback only) believes the metadata."""

    def __init__(self, desk: Desk, *, insecure: bool) -> None:
        self._desk = desk
        self._insecure = insecure

    async def caller(self, context: Context) -> Caller:
        """The caller of this RPC.

        Raises:
            UnauthenticatedError: without a certificate that is in force.
        """
        if self._insecure:
            return self._from_metadata(context)
        pems = list(context.auth_context().get("x509_pem_cert", ()))
        if not pems:
            raise UnauthenticatedError("certificate.missing", "no client certificate", "enrol with a join token first")
        return await self._desk.identify(pems[0])

    async def participant(self, context: Context) -> str:
        """The calling participant's id.

        Raises:
            UnauthenticatedError: without a certificate that is in force.
            ForbiddenError: for an operator's certificate.
        """
        return (await self._require(context, Role.PARTICIPANT)).name

    async def operator(self, context: Context) -> str:
        """The calling operator's name.

        Raises:
            UnauthenticatedError: without a certificate that is in force.
            ForbiddenError: for a participant's certificate.
        """
        return (await self._require(context, Role.OPERATOR)).name

    async def _require(self, context: Context, role: Role) -> Caller:
        caller = await self.caller(context)
        if caller.role is not role:
            raise ForbiddenError(
                "certificate.role",
                f"this needs the certificate of an {role}"
                if role is Role.OPERATOR
                else f"this needs the certificate of a {role}, not of an {caller.role}",
            )
        return caller

    def _from_metadata(self, context: Context) -> Caller:
        metadata = dict(context.invocation_metadata() or ())
        if INSECURE_OPERATOR in metadata:
            return Caller(Role.OPERATOR, "insecure")
        name = str(metadata.get(INSECURE_PARTICIPANT, ""))
        if not name:
            raise UnauthenticatedError(
                "insecure.participant", f"no {INSECURE_PARTICIPANT} metadata", "start the client with --insecure"
            )
        return Caller(Role.PARTICIPANT, check_participant_id(name))


class Watch:
    """Asks again now and then whether the caller of a long stream is still welcome."""

    def __init__(self, authenticator: Authenticator, context: Context) -> None:
        self._authenticator = authenticator
        self._context = context
        self._checked = time.monotonic()

    async def check(self) -> None:
        """Cheap unless ``REVOCATION_CHECK_S`` have passed since the last look.

        Raises:
            UnauthenticatedError: if the caller's certificate is no longer in force.
        """
        now = time.monotonic()
        if now - self._checked >= REVOCATION_CHECK_S:
            self._checked = now
            await self._authenticator.caller(self._context)
