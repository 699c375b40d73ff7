"""Limits attempts to enrol by address, since callers of the enrolment port have no name yet."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from atoll.server.config.limits import Limits
from atoll.server.errors import LimitExceededError, UnauthenticatedError
from atoll.server.rpc.buckets import Bucket, RecentValues
from atoll.server.rpc.peers import network_of

MAX_ADDRESSES = 65_536
"""Maximum number of addresses to track; the least recent one is dropped first."""


class EnrolmentRate:
    """Counts attempts to enrol by address, with separate counts of bad tokens and of renewals.

    A gateway passes on its participants' enrolments and renewals from one address. Guesses at tokens from there must
    not keep others from renewing their certificates. A renewal needs a signature, which cannot be guessed.

    Args:
        limits: attempts allowed per minute, bad ones per hour.
        clock: seconds, monotonic.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        tries, wrong = limits.enrolments_per_minute, limits.wrong_tokens_per_hour
        self._tries = RecentValues[str, Bucket](lambda: Bucket(tries, tries / 60.0, clock()), MAX_ADDRESSES)
        self._renewals = RecentValues[str, Bucket](lambda: Bucket(tries, tries / 60.0, clock()), MAX_ADDRESSES)
        self._wrong = RecentValues[str, Bucket](lambda: Bucket(wrong, wrong / 3600.0, clock()), MAX_ADDRESSES)

    @contextlib.contextmanager
    def attempt(self, peer: str) -> Iterator[None]:
        """Count an attempt of a peer, given as gRPC names it, for example ``ipv4:10.1.2.3:50123``.

        Raises:
            LimitExceededError: if its address has made too many attempts, or sent too many bad tokens.
            UnauthenticatedError: if the block raises it; counted as a bad token.
        """
        address, now, limits = network_of(peer), self._clock(), self._limits
        self._take(self._tries, "attempts to enrol", address, now)
        if wait_s := self._wrong[address].empty(now):
            raise LimitExceededError(
                "enrolment.guesses",
                f"more than {limits.wrong_tokens_per_hour} join tokens from {address} in an hour did not admit",
                "wait, then try again with a good token",
                retry_after_s=wait_s,
            )
        try:
            yield
        except UnauthenticatedError:
            self._wrong[address].take(1.0, now)
            raise

    def renewal(self, peer: str) -> None:
        """Count an attempt to renew a certificate on the enrolment port.

        Raises:
            LimitExceededError: if the peer's address has made too many attempts.
        """
        self._take(self._renewals, "renewals", network_of(peer), self._clock())

    def _take(self, buckets: RecentValues[str, Bucket], what: str, address: str, now: float) -> None:
        if wait_s := buckets[address].take(1.0, now):
            raise LimitExceededError(
                "enrolment.rate",
                f"more than {self._limits.enrolments_per_minute} {what} from {address} in a minute",
                "try again later",
                retry_after_s=wait_s,
            )
