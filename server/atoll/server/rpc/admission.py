"""Limits per caller on calls, streams and bytes (``config.limits``).

A caller that exceeds its rate of calls gets the refusal after a delay. A connection admits a limited number of open
calls, so a caller that floods the server waits for its own refusals instead of keeping this process busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from atoll.server.config.limits import GIB, MIB, Limits
from atoll.server.errors import LimitExceededError
from atoll.server.rpc.buckets import Bucket, RecentValues

PUT_OFF_S = 5.0
"""Seconds before the refusal of a caller that calls too often is sent."""
MAX_PUT_OFF = 1024
"""Maximum number of delayed refusals of one caller; further ones are sent at once."""
BLOCK_BYTES = 4 * MIB
"""Bytes that a stream takes from its caller's allowance at a time; it returns unused bytes."""
MAX_CALLERS = 65_536
"""Maximum number of callers whose allowances are kept, about 1 KB each. The least recent one is dropped first."""
MAX_TASKS = 64
"""Maximum number of invitations of one stream whose answers are counted separately."""
_BURST_S = 2.0
_LATER = "try again later, or have the limit raised"
_MINUTE_S, _HOUR_S = 60.0, 3600.0

Clock = Callable[[], float]


class Call(Protocol):
    """The subset of a gRPC call's interface that is used here."""

    def add_done_callback(self, callback: Any) -> None:
        """Call ``callback`` with the call's context when the call ends."""
        ...


class _Account:
    """The remaining allowances of one caller, and its open calls and transfers.

    Allowances of bytes are created at the first transfer: most of thousands of idle callers have none.
    """

    __slots__ = ("_down", "_up", "calls", "check_ins", "open_calls", "put_off", "transfers")

    def __init__(self, limits: Limits, now: float) -> None:
        self._up: tuple[Bucket, Bucket] | None = None
        self._down: Bucket | None = None
        self.calls = Bucket(limits.calls_per_minute, limits.calls_per_minute / _MINUTE_S, now)
        self.check_ins = Bucket(limits.check_ins_per_minute, limits.check_ins_per_minute / _MINUTE_S, now)
        self.open_calls = self.transfers = self.put_off = 0

    def up(self, limits: Limits, now: float) -> tuple[Bucket, Bucket]:
        """Bytes of uploads: those of the next seconds, and those of the hour."""
        if self._up is None:
            rate, quota = limits.upload_mib_per_s * MIB, limits.upload_gib_per_hour * GIB
            self._up = Bucket(rate * _BURST_S, rate, now), Bucket(quota, quota / _HOUR_S, now)
        return self._up

    def down(self, limits: Limits, now: float) -> Bucket:
        """Bytes of downloads in the hour."""
        if self._down is None:
            quota = limits.download_gib_per_hour * GIB
            self._down = Bucket(quota, quota / _HOUR_S, now)
        return self._down


class Allowance:
    """Counts the bytes of one stream against its caller's allowance: one addition and comparison per message."""

    __slots__ = ("_draw", "_left", "_return")

    def __init__(self, draw: Callable[[int], None], give_back: Callable[[int], None]) -> None:
        self._draw = draw
        self._return = give_back
        self._left = 0

    def count(self, amount: int) -> None:
        """Count the bytes of one message.

        Raises:
            LimitExceededError: if the allowance is used up; the bytes of the refused message are not counted.
        """
        self._left -= amount
        if self._left < 0:
            wanted = max(BLOCK_BYTES, amount)
            try:
                self._draw(wanted)
            except LimitExceededError:
                self._left += amount
                raise
            self._left += wanted

    def close(self) -> None:
        """Return unused bytes to the allowance."""
        self._return(self._left)
        self._left = 0


class Replies:
    """Counts the answers to each invitation on one check-in stream."""

    def __init__(self, limits: Limits) -> None:
        self._most = limits.replies_per_task
        self._counts: OrderedDict[object, int] | None = None

    def count(self, task: object) -> None:
        """Count an answer to this invitation.

        Raises:
            LimitExceededError: if there were too many.
        """
        if self._counts is None:
            self._counts = OrderedDict()
        count = self._counts[task] = self._counts.pop(task, 0) + 1
        if count > self._most:
            raise LimitExceededError(
                "reply.count", f"{count} answers to one invitation; at most {self._most}", "answer each once"
            )
        if len(self._counts) > MAX_TASKS:
            self._counts.popitem(last=False)


class Admission:
    """The accounts of all callers. Single-threaded: only the event loop uses it.

    Args:
        limits: the limits of each caller.
        clock: seconds, monotonic.
    """

    def __init__(self, limits: Limits, clock: Clock = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._accounts: RecentValues[str, _Account] = RecentValues(lambda: _Account(limits, clock()), MAX_CALLERS)

    async def call(self, caller: str, call: Call) -> None:
        """Admit a call; its slot becomes free when it ends.

        Raises:
            LimitExceededError: if the caller has too many open calls, or starts them too fast.
        """
        account = self._accounts[caller]
        if wait_s := await self._take(account, account.calls):
            raise LimitExceededError(
                "call.rate", f"more than {self.limits.calls_per_minute} calls in a minute", "call less often", wait_s
            )
        if account.open_calls >= self.limits.calls_per_participant:
            raise LimitExceededError(
                "call.places", f"{caller} has {account.open_calls} calls open already", "end some first", 1.0
            )
        account.open_calls += 1

        def ended(_: Any) -> None:
            account.open_calls -= 1

        call.add_done_callback(ended)

    async def check_in(self, participant: str) -> None:
        """Admit a check-in stream of a participant.

        Raises:
            LimitExceededError: if it checks in too often.
        """
        account = self._accounts[participant]
        if wait_s := await self._take(account, account.check_ins):
            most = self.limits.check_ins_per_minute
            raise LimitExceededError(
                "checkin.rate", f"more than {most} check-ins in a minute", "keep the stream open", wait_s
            )

    def reply(self, participant: str) -> None:
        """Count an answer on a check-in stream as a call.

        Raises:
            LimitExceededError: if there are too many.
        """
        if wait_s := self._accounts[participant].calls.take(1.0, self._clock()):
            raise LimitExceededError(
                "call.rate", f"more than {self.limits.calls_per_minute} calls in a minute", "reply less often", wait_s
            )

    @contextlib.contextmanager
    def transfer(self, caller: str) -> Iterator[None]:
        """Hold one of the caller's transfer slots.

        Raises:
            LimitExceededError: if all of them are taken.
        """
        account, most = self._accounts[caller], self.limits.transfers_per_participant
        if account.transfers >= most:
            raise LimitExceededError(
                "stream.places", f"{caller} has {most} transfers open already", "close some first", retry_after_s=1.0
            )
        account.transfers += 1
        try:
            yield
        finally:
            account.transfers -= 1

    @contextlib.contextmanager
    def upload(self, participant: str) -> Iterator[Allowance]:
        """A counter for the bytes of an upload stream."""
        limits = self.limits
        up_now, up_quota = self._accounts[participant].up(limits, self._clock())

        def draw(amount: int) -> None:
            now = self._clock()
            if wait_s := up_quota.empty(now):
                raise LimitExceededError(
                    "upload.quota",
                    f"this participant has uploaded {limits.upload_gib_per_hour} GiB within an hour",
                    _LATER,
                    retry_after_s=wait_s,
                )
            if wait_s := up_now.take(amount, now):
                raise LimitExceededError(
                    "upload.rate",
                    f"this participant uploads more than {limits.upload_mib_per_s} MiB/s",
                    "continue a little later",
                    retry_after_s=wait_s,
                )
            up_quota.take(amount, now)

        def give_back(amount: int) -> None:
            up_now.give_back(amount)
            up_quota.give_back(amount)

        with contextlib.closing(Allowance(draw, give_back)) as allowance:
            yield allowance

    @contextlib.contextmanager
    def download(self, caller: str) -> Iterator[Allowance]:
        """A counter for the bytes of a download stream."""
        limits = self.limits
        down = self._accounts[caller].down(limits, self._clock())

        def draw(amount: int) -> None:
            if wait_s := down.take(amount, self._clock()):
                raise LimitExceededError(
                    "download.quota",
                    f"this caller has downloaded {limits.download_gib_per_hour} GiB within an hour",
                    _LATER,
                    retry_after_s=wait_s,
                )

        with contextlib.closing(Allowance(draw, down.give_back)) as allowance:
            yield allowance

    async def _take(self, account: _Account, bucket: Bucket) -> float:
        """Take one unit and return 0.0; if none is left, return, after a delay, the seconds to wait."""
        wait_s = bucket.take(1.0, self._clock())
        if wait_s and account.put_off < MAX_PUT_OFF:
            account.put_off += 1
            try:
                await asyncio.sleep(PUT_OFF_S)
            finally:
                account.put_off -= 1
        return wait_s
