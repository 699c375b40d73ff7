"""Rank 0's record of the updates whose rounding errors are kept: which one counted last, and which one is in doubt.

An update is entered before it is reported. If the silo is killed, or the server's answer is lost, the entry remains,
and the same report is sent again when the next round begins. The server gives it the answer of the first time, and
counts it once. So the silo always learns whether the update counted.
"""

from __future__ import annotations

import json
import logging
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.client import RoundKey
from atoll.client.errors import RefusedError
from atoll.datacenter.checkpoint.files import write_durable
from atoll.datacenter.durable import sync_folder
from atoll.datacenter.errors import CheckpointError
from atoll.wire.v1 import transfer_pb2

if TYPE_CHECKING:
    from atoll.client.silo import TaskTransfers

log = logging.getLogger(__name__)

NAME = "journal.json"
USED = frozenset({transfer_pb2.ReportResponse.DISPOSITION_COUNTED, transfer_pb2.ReportResponse.DISPOSITION_CARRIED})
"""Dispositions of an update that is part of a sum, or will be of a later one."""


@dataclass(frozen=True)
class Sent:
    """An update that counted.

    Attributes:
        run, round, attempt: round that it counts in.
        upload: its id.
        before: id of the update whose errors it included; empty: none.
    """

    run: str
    round: int
    attempt: int
    upload: str
    before: str


class Journal:
    """See the module. One thread uses it.

    Args:
        path: the file; None keeps everything in memory, for a silo without checkpoints.

    Raises:
        CheckpointError: if the file is damaged.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._counted: Sent | None = None
        self._doubtful: tuple[transfer_pb2.ReportRequest, str] | None = None
        if path is not None and path.exists():
            self._load(path)

    def errors_for(self, key: RoundKey) -> str:
        """Return the id of the update whose rounding errors this round's update includes; empty: none.

        Errors of another run are never included. If the server restarts the round of the last update, that update is in
        no sum, so the errors before it are the right ones.
        """
        last = self._counted
        if last is None or last.run != key.run:
            return ""
        anew = last.round == key.round and last.attempt < key.attempt
        return last.before if anew else last.upload

    def enter(self, report: transfer_pb2.ReportRequest) -> None:
        """Record durably that an update will be reported.

        Raises:
            OSError: if the file cannot be written.
        """
        key = RoundKey(report.round.run, report.round.round, report.round.attempt)
        self._doubtful = (report, self.errors_for(key))
        self._save()

    def answered(self, answer: transfer_pb2.ReportResponse | None) -> None:
        """Record the server's answer to that report; None: it refused the update.

        Raises:
            OSError: if the file cannot be written.
        """
        if self._doubtful is None:
            return
        (report, before), self._doubtful = self._doubtful, None
        if answer is not None and answer.disposition in USED:
            at = report.round
            self._counted = Sent(at.run, at.round, at.attempt, report.upload_id, before)
        self._save()

    def settle(self, transfers: TaskTransfers) -> tuple[transfer_pb2.ReportRequest, transfer_pb2.ReportResponse] | None:
        """Report an update in doubt again; return the report and the answer, None if there is none or it was refused.

        Raises:
            Abandoned, NotPermittedError, UnreachableError: as a report does; the update then stays in doubt.
            OSError: if the file cannot be written.
        """
        if self._doubtful is None:
            return None
        report, _ = self._doubtful
        try:
            answer = transfers.report(report)
        except RefusedError as refusal:
            log.info("update %s, which was in doubt, does not count: %s", report.upload_id, refusal)
            self.answered(None)
            return None
        self.answered(answer)
        return report, answer

    def _load(self, path: Path) -> None:
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if found["counted"] is not None:
                self._counted = Sent(**found["counted"])
            if found["doubtful"] is not None:
                report = transfer_pb2.ReportRequest.FromString(b64decode(found["doubtful"]["report"]))
                self._doubtful = (report, str(found["doubtful"]["before"]))
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({error}): restore it, or remove it; then what the encoding has rounded off so "
                "far is not sent"
            ) from error

    def _save(self) -> None:
        if self._path is None:
            return
        doubtful = None
        if self._doubtful is not None:
            report, before = self._doubtful
            doubtful = {"report": b64encode(report.SerializeToString()).decode(), "before": before}
        counted = None if self._counted is None else asdict(self._counted)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        written = self._path.with_suffix(".new")
        written.unlink(missing_ok=True)
        write_durable(written, json.dumps({"counted": counted, "doubtful": doubtful}).encode())
        written.replace(self._path)
        sync_folder(self._path.parent)
