"""Limits attempts to enrol by address, since callers of the enrolment port have no name yet."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from atoll.server.config.limits import Limits
from atoll.server.errors import LimitExceededError, UnauthenticatedError
from atoll.server.rpc.buckets import Bucket, RecentValues

MAX_ADDRESSES = 65_536
"""Maximum number of addresses to track; the least recent one is dropped first."""
MAX_AGGREGATORS, MAX_SOURCES = 1024, 1024
"""The same for aggregators, and for the addresses behind each."""
SOURCES = 16
"""An aggregator as a whole has the limits of this many addresses, because it can make up any number of them."""


class EnrolmentRate:
    """Counts attempts to enrol by address, with separate counts of bad tokens and of renewals.

    Attempts through an aggregator are counted by the aggregator and the address that it reports, and once more for the
    aggregator as a whole. So guesses there, and false reports, have no effect on callers elsewhere.

    A gateway passes on its participants' renewals from one address. Guesses at tokens from there must not keep others
    from renewing their certificates. A renewal needs a signature, which cannot be guessed.

    Args:
        limits: attempts allowed per minute, bad ones per hour.
        clock: seconds, monotonic.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._direct = RecentValues[str, _Attempts](self._address, MAX_ADDRESSES)
        self._aggregators = RecentValues[str, _Aggregator](self._aggregator, MAX_AGGREGATORS)
        self._renewals = RecentValues[str, Bucket](self._per_minute, MAX_ADDRESSES)

    @contextlib.contextmanager
    def attempt(self, source: str, aggregator: str = "") -> Iterator[None]:
        """Count an attempt.

        Args:
            source: the address or network that it came from (``peers.network_of``).
            aggregator: id of the aggregator that passed it on and reports ``source``; empty: a direct call.

        Raises:
            LimitExceededError: if its address, or the aggregator, has made too many attempts, or sent too many bad
                tokens.
            UnauthenticatedError: if the block raises it; counted as a bad token.
        """
        now, counts = self._clock(), self._counts(source, aggregator)
        for name, one in counts.items():
            one.begin(name, now)
        try:
            yield
        except UnauthenticatedError:
            for one in counts.values():
                one.wrong.take(1.0, now)
            raise

    def renewal(self, address: str) -> None:
        """Count an attempt to renew a certificate on the enrolment port.

        Raises:
            LimitExceededError: if the address has made too many attempts.
        """
        if wait_s := self._renewals[address].take(1.0, self._clock()):
            raise _too_many("renewals", address, self._limits.enrolments_per_minute, wait_s)

    def _counts(self, source: str, aggregator: str) -> dict[str, _Attempts]:
        """The counters of an attempt, by name; if one refuses the attempt, later ones do not count it."""
        if not aggregator:
            return {source: self._direct[source]}
        site = self._aggregators[aggregator]
        return {f"{source} at aggregator {aggregator}": site.sources[source], f"aggregator {aggregator}": site.whole}

    def _address(self) -> _Attempts:
        return _Attempts(self._limits, self._clock())

    def _aggregator(self) -> _Aggregator:
        return _Aggregator(_Attempts(self._limits, self._clock(), SOURCES), self._address)

    def _per_minute(self) -> Bucket:
        tries = self._limits.enrolments_per_minute
        return Bucket(tries, tries / 60.0, self._clock())


class _Attempts:
    """Counts the attempts of one caller; its limits are ``times`` those of one address."""

    __slots__ = ("_most_tries", "_most_wrong", "_tries", "wrong")

    def __init__(self, limits: Limits, now: float, times: int = 1) -> None:
        self._most_tries, self._most_wrong = times * limits.enrolments_per_minute, times * limits.wrong_tokens_per_hour
        self._tries = Bucket(self._most_tries, self._most_tries / 60.0, now)
        self.wrong = Bucket(self._most_wrong, self._most_wrong / 3600.0, now)

    def begin(self, name: str, now: float) -> None:
        """Count an attempt; errors call the caller ``name``.

        Raises:
            LimitExceededError: if there were too many, or too many with bad tokens.
        """
        if wait_s := self._tries.take(1.0, now):
            raise _too_many("attempts to enrol", name, self._most_tries, wait_s)
        if wait_s := self.wrong.empty(now):
            raise LimitExceededError(
                "enrolment.guesses",
                f"more than {self._most_wrong} join tokens from {name} in an hour did not admit",
                "wait, then try again with a good token",
                retry_after_s=wait_s,
            )


class _Aggregator:
    """Counts the attempts at one aggregator: all together, and by address."""

    __slots__ = ("sources", "whole")

    def __init__(self, whole: _Attempts, address: Callable[[], _Attempts]) -> None:
        self.whole = whole
        self.sources = RecentValues[str, _Attempts](address, MAX_SOURCES)


def _too_many(what: str, name: str, most: int, wait_s: float) -> LimitExceededError:
    return LimitExceededError(
        "enrolment.rate", f"more than {most} {what} from {name} in a minute", "try again later", retry_after_s=wait_s
    )
