"""Identifies signed-in operators by the token of each call, on a port that requires no certificate."""

from __future__ import annotations

import time
from collections.abc import Callable

from atoll.server.access.oidc import SignedIn, TokenEndedError, TokenVerifier
from atoll.server.errors import LimitExceededError, UnauthenticatedError
from atoll.server.identity import Role
from atoll.server.ingest.coordinator_api import Caller, CoordinatorApi
from atoll.server.rpc.admission import Admission
from atoll.server.rpc.authentication import Authenticator, Context
from atoll.server.rpc.buckets import Bucket, RecentValues
from atoll.server.rpc.enrolment_rate import MAX_ADDRESSES
from atoll.server.rpc.peers import network_of

SIGN_IN = "/atoll.wire.v1.SignInService/GetSignIn"
"""Methods without authentication: anyone may ask where to sign in."""
_SCHEME = "Bearer "


class TokenAuthenticator(Authenticator):
    """Identifies callers, all operators, by a provider's token.

    Args:
        coordinator: see ``Authenticator``.
        admission: see ``Authenticator``.
        verifier: verifies tokens.
        issuer: the tokens' issuer.
        origin: see ``Authenticator``.
    """

    def __init__(
        self,
        coordinator: CoordinatorApi,
        admission: Admission,
        verifier: TokenVerifier,
        issuer: str,
        origin: Callable[[str], str],
    ) -> None:
        super().__init__(coordinator, admission, insecure=False, origin=origin)
        self._verifier = verifier
        self._issuer = issuer
        questions, wrong = admission.limits.enrolments_per_minute, admission.limits.wrong_tokens_per_hour
        self._questions = RecentValues[str, Bucket](
            lambda: Bucket(questions, questions / 60.0, time.monotonic()), MAX_ADDRESSES
        )
        self._wrong = RecentValues[str, Bucket](lambda: Bucket(wrong, wrong / 3600.0, time.monotonic()), MAX_ADDRESSES)

    async def enter(self, method: str, context: Context) -> str:
        """See ``Authenticator``; a sign-in query is counted for the address."""
        if method == SIGN_IN:
            return self._asking(network_of(self.origin(context.peer())))
        return await super().enter(method, context)

    def _asking(self, address: str) -> str:
        """Count a sign-in query.

        Raises:
            LimitExceededError: if the address asks too often.
        """
        if wait_s := self._questions[address].take(1.0, time.monotonic()):
            raise LimitExceededError(
                "oidc.rate",
                f"more than {self.admission.limits.enrolments_per_minute} requests for sign-in settings from {address} "
                "in a minute",
                "try again later",
                retry_after_s=wait_s,
            )
        return address

    def credential(self, context: Context) -> str:
        """See ``Authenticator``."""
        return f"sign-in {self._issuer}"

    async def _found(self, context: Context) -> Caller:
        given = str(dict(context.invocation_metadata() or ()).get("authorization", ""))
        if not given.startswith(_SCHEME):
            raise UnauthenticatedError(
                "oidc.missing", "the call has no token", "sign in: atoll operator login --server HOST:PORT"
            )
        found = await self._verified(given.removeprefix(_SCHEME), network_of(self.origin(context.peer())))
        return Caller(Role.OPERATOR, found.name, found.rights)

    async def _verified(self, token: str, address: str) -> SignedIn:
        """The operator of a token; an address with many bad tokens is refused, unless the token was accepted before."""
        now = time.monotonic()
        wait_s = 0.0 if self._verifier.knows(token) else self._wrong[address].empty(now)
        if wait_s:
            raise LimitExceededError(
                "oidc.guesses",
                f"more than {self.admission.limits.wrong_tokens_per_hour} tokens from {address} in an hour were not "
                "accepted",
                "wait, then sign in again",
                retry_after_s=wait_s,
            )
        try:
            return await self._verifier.verify(token)
        except TokenEndedError:
            raise
        except UnauthenticatedError:
            self._wrong[address].take(1.0, now)
            raise
