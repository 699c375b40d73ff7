"""Records operators' actions as durable entries in the database; see ``stores.audit``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace

from atoll.server.errors import ServerError
from atoll.server.stores import AuditEntry, Writer, audit
from atoll.text.printable import printable

log = logging.getLogger(__name__)

MAX_TEXT_CHARS = 256
"""Maximum characters of a subject, a detail or a name in one entry."""
REFUSALS_AT_ONCE = 60
"""Refusals of one operator that are recorded in a row; after that, one per ``REFUSAL_INTERVAL_S``."""
REFUSAL_INTERVAL_S = 10.0
_OPERATORS = 4096
_HELD_DOWNLOADS = 4096
_DOWNLOAD = "model.download"
_DOWNLOAD_S = 3600.0


@dataclass
class _Allowance:
    """The number of an operator's refusals that may be recorded now, and that were skipped since the last one."""

    left: float
    at: float
    skipped: int = 0


class AuditLog:
    """Appends entries. An entry is durable when ``record`` returns.

    A refused operator cannot fill the database: of many refusals in a row some are skipped, and the next entry has
    their number.

    Args:
        writer: the database's writer.
        clock: epoch seconds, UTC.
        steady: seconds, monotonic.
    """

    def __init__(
        self, writer: Writer, clock: Callable[[], float], steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._steady = steady
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()

    async def record(self, entry: AuditEntry) -> None:
        """Append an entry with the current time, even if the caller is cancelled meanwhile.

        Raises:
            StorageError: if it could not be stored; the operator must then not be told of success.
        """
        wanted = self._bounded(entry)
        if wanted is None:
            return
        appending = asyncio.wrap_future(self._writer.submit(audit.append, wanted))
        try:
            await asyncio.shield(appending)
        except asyncio.CancelledError:  # the entry must not be lost if the operator cancels its call
            appending.add_done_callback(lambda done: _log_failure(wanted, done))
            raise

    def record_later(self, entry: AuditEntry) -> None:
        """Append an entry about a call that was cut off, without waiting for the writer."""
        wanted = self._bounded(entry)
        if wanted is None:
            return
        try:
            self._writer.submit(audit.append, wanted).add_done_callback(lambda done: _log_failure(wanted, done))
        except ServerError as error:  # the call is over; the server's log has the entry that the audit log lacks
            _log_missing(wanted, error)

    def _bounded(self, entry: AuditEntry) -> AuditEntry | None:
        detail = entry.detail
        allowance = self._allowance(entry.operator)
        if entry.outcome == "refused":
            if allowance.left < 1.0:
                allowance.skipped += 1
                return None
            allowance.left -= 1.0
        if allowance.skipped:
            detail = f"{allowance.skipped} refusals before this entry are not recorded; {detail}"
            allowance.skipped = 0
        return replace(
            entry,
            at=self._clock(),
            operator=_bounded_text(entry.operator),
            subject=_bounded_text(entry.subject),
            detail=_bounded_text(detail),
        )

    def _allowance(self, operator: str) -> _Allowance:
        now = self._steady()
        found = self._allowances.pop(operator, None) or _Allowance(REFUSALS_AT_ONCE, now)
        found.left = min(REFUSALS_AT_ONCE, found.left + (now - found.at) / REFUSAL_INTERVAL_S)
        found.at = now
        self._allowances[operator] = found
        if len(self._allowances) > _OPERATORS:
            self._allowances.popitem(last=False)
        return found


class OperatorDownloads:
    """Records operators who download a model without having looked up its name.

    ``GetRunModel`` is recorded with its run and returns the model's name. A caller that knows the name from elsewhere
    can download without that call.
    """

    def __init__(self, audit_log: AuditLog, steady: Callable[[], float] = time.monotonic) -> None:
        self._audit_log = audit_log
        self._steady = steady
        self._expected: OrderedDict[tuple[str, str], float] = OrderedDict()

    def expect(self, operator: str, blob: str) -> None:
        """Note that the operator has looked up this name."""
        self._expected[operator, blob] = self._steady()
        self._expected.move_to_end((operator, blob))
        if len(self._expected) > _HELD_DOWNLOADS:
            self._expected.popitem(last=False)

    async def check(self, operator: str, blob: str, project: str = "") -> None:
        """Record an unexpected download, once an hour; ``project`` is the operator's project with the blob.

        Raises:
            StorageError: if the entry could not be stored.
        """
        if self._steady() - self._expected.get((operator, blob), float("-inf")) > _DOWNLOAD_S:
            await self._audit_log.record(AuditEntry(0.0, operator, "", "", _DOWNLOAD, blob, project=project))
            self.expect(operator, blob)

    async def refused(self, operator: str, blob: str, code: str) -> None:
        """Record a download that the operator's role does not allow.

        Raises:
            StorageError: if the entry could not be stored.
        """
        await self._audit_log.record(AuditEntry(0.0, operator, "", "", _DOWNLOAD, blob, outcome="refused", code=code))


def _bounded_text(text: str) -> str:
    return printable(text[:MAX_TEXT_CHARS])[:MAX_TEXT_CHARS]


def _log_failure(entry: AuditEntry, appended: Future[AuditEntry] | asyncio.Future[AuditEntry]) -> None:
    if not appended.cancelled() and (error := appended.exception()) is not None:
        _log_missing(entry, error)


def _log_missing(entry: AuditEntry, error: BaseException) -> None:
    words = "missing from the audit log: %s %s of operator %s: %s"
    log.error(words, entry.action, entry.subject, entry.operator, error)
