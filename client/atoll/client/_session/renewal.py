"""The endpoint of a session while it runs: its certificate is renewed, its interval of pings follows the server's."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from atoll.client._clock import bounded_s, now_s, wall_s
from atoll.client._connection.backoff import Backoff
from atoll.client._connection.enrolment import renew_expired, renewal_signature, renewed
from atoll.client._connection.identity import store
from atoll.client._connection.keys import make_csr, make_key
from atoll.client._connection.refusals import error_of, refusal_of, retry_after_s
from atoll.client._session.threads import in_thread
from atoll.client._state.ping_interval import keep_ping_s, kept_ping_s
from atoll.client.errors import NotPermittedError
from atoll.client.events import Observer, Renewed
from atoll.processes.cancellation import keep_cancellation
from atoll.wire.pacing import ping_interval_s
from atoll.wire.v1 import enrolment_pb2, enrolment_pb2_grpc

if TYPE_CHECKING:
    from atoll.client._connection.endpoint import Endpoint
    from atoll.client._connection.identity import Identity
    from atoll.client.limits import Limits

log = logging.getLogger("atoll.client")

DUE_SHARE = 1 / 3
"""Share of a certificate's lifetime that is left when it is renewed."""
_JITTER_SHARE = 0.05
_APART_SHARE = 0.5
"""A renewed certificate is kept for at least this share of its lifetime, even if the server says that less is left."""


def due_in_s(lifetime_s: float, remaining_s: float, jitter: float) -> float:
    """Seconds until a certificate should be renewed: at two thirds of its lifetime, up to 5 % earlier.

    ``jitter`` in [0, 1) spreads participants that enrolled together.
    """
    return max(0.0, remaining_s - lifetime_s * (DUE_SHARE + _JITTER_SHARE * jitter))


class Renewal:
    """Holds the current endpoint, renews its certificate in time, and keeps the interval of its pings."""

    def __init__(self, endpoint: Endpoint, state: Path, limits: Limits, observer: Observer) -> None:
        self.endpoint = replace(endpoint, ping_s=kept_ping_s(state))
        self._state = state
        self._limits = limits
        self._observer = observer
        self._ends_s: float | None = None
        self._not_before_s = 0.0
        self._reopened = False

    async def follow_pings(self, stated_s: float) -> bool:
        """Take over the server's interval of pings for the next connections, and keep it for the next start.

        Args:
            stated_s: as the server's welcome states it; 0: not stated.

        Returns:
            Whether to open the present connection again for it. A connection that was opened for this reason is not
            opened again, so servers that disagree, behind one address, do not keep a participant from its work.
        """
        ping_s = ping_interval_s(stated_s)
        if ping_s == self.endpoint.ping_s:
            self._reopened = False
            return False
        log.info("the server pings every %g s: connecting with that interval from now on", ping_s)
        self.endpoint = replace(self.endpoint, ping_s=ping_s)
        await in_thread(lambda: keep_ping_s(self._state, ping_s), "atoll-store")
        self._reopened = not self._reopened
        return self._reopened

    def expired(self) -> bool:
        """Whether the certificate has expired: by the remaining time that the server sent, else by the local clock."""
        if self._ends_s is not None:
            return now_s() >= self._ends_s
        return self.endpoint.identity is not None and self.endpoint.identity.expired()

    async def recover(self) -> None:
        """Renew an expired certificate, which the main port no longer accepts, at the enrolment port.

        Raises:
            NotPermittedError: if the server does not accept the identity, or no longer.
            UnreachableError: if the server did not answer.
            RefusedError: if it refuses for another reason, or sends no certificate.
        """
        identity = self.endpoint.identity
        if identity is None or not identity.enrolment_address:
            raise NotPermittedError("the certificate expired; enrol with a new join token")
        fresh = await in_thread(lambda: renew_expired(identity, self._state, self._limits.call_s), "atoll-recover")
        self._take(fresh)

    def too_soon(self) -> bool:
        """Whether the last renewal is too recent to renew again, as with a server that issues expired certificates."""
        return now_s() < self._not_before_s

    def _take(self, fresh: Identity) -> None:
        self.endpoint, self._ends_s = replace(self.endpoint, identity=fresh), None
        self._not_before_s = now_s() + max(_APART_SHARE * fresh.lifetime_s, self._limits.backoff_cap_s)
        self._observer(Renewed(fresh.lifetime_s))

    async def run(self, channel: grpc.aio.Channel, remaining_s: float) -> None:
        """Wait until renewal is due, renew, store; returns once ``endpoint`` has the new certificate.

        Without TLS it never returns. ``remaining_s`` is the certificate's remaining time as the server sent it; if it
        is negative or NaN, this machine's clock decides. Renewals are at least half a lifetime and
        ``limits.backoff_cap_s`` apart.

        Raises:
            NotPermittedError: if the server refuses.
            RefusedError: if it sends no certificate for the new key.
        """
        due_s = self.due_in_s(remaining_s)
        if math.isinf(due_s):
            await asyncio.Event().wait()
        await asyncio.sleep(due_s)
        await self.renew(channel)

    def due_in_s(self, remaining_s: float) -> float:
        """Seconds until renewal is due; infinite without TLS. ``remaining_s`` as for ``run``."""
        identity = self.endpoint.identity
        if identity is None:
            return math.inf
        lifetime_s = identity.lifetime_s
        is_stated = remaining_s >= 0  # false for NaN
        left_s = bounded_s(remaining_s if is_stated else identity.validity[1].timestamp() - wall_s(), lifetime_s)
        self._ends_s = now_s() + left_s if is_stated else None
        due_s = due_in_s(lifetime_s, left_s, random.random())  # noqa: S311  # spreads load, needs no secrecy
        return max(due_s, self._not_before_s - now_s())

    async def renew(self, channel: grpc.aio.Channel) -> None:
        """Renew now, and store; ``endpoint`` then has the new certificate. Does nothing without TLS.

        Raises:
            NotPermittedError: if the server refuses.
            RefusedError: if it sends no certificate for the new key.
        """
        identity = self.endpoint.identity
        if identity is None:
            return
        fresh = await self._renew(channel, identity)
        await in_thread(lambda: store(self._state, fresh), "atoll-store")
        self._take(fresh)

    async def _renew(self, channel: grpc.aio.Channel, identity: Identity) -> Identity:
        stub = enrolment_pb2_grpc.RenewalServiceStub(channel)
        backoff = Backoff(1.0, 300.0)
        key_pem = await in_thread(make_key, "atoll-key")
        csr_pem = make_csr(key_pem)
        signature = await in_thread(lambda: renewal_signature(identity, csr_pem), "atoll-key")
        request = enrolment_pb2.RenewRequest(csr_pem=csr_pem, signature=signature)
        while True:
            try:
                answer = await stub.Renew(request, timeout=self._limits.call_s)
            except grpc.aio.AioRpcError as error:
                keep_cancellation()
                refusal = refusal_of(error)
                if refusal is not None:
                    raise refusal from None
                delay = max(backoff.next_s(), retry_after_s(error_of(error)[2], self._limits))
                log.warning("renewal of the certificate failed (%s); trying again in %.0f s", error_of(error)[1], delay)
                await asyncio.sleep(delay)
            else:
                return renewed(identity, answer, key_pem)
