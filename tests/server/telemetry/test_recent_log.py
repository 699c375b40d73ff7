from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from atoll.server.errors import UnavailableError
from atoll.server.process.logs import ContextFilter, kept_in
from atoll.server.telemetry.context import about
from atoll.server.telemetry.recent_log import MAX_MESSAGE_CHARS, RecentLog

log = logging.getLogger("atoll.server.somewhere")
SECRET = Path("/srv/hospital/atoll-data/spool")


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "atoll")


def texts(recent: RecentLog, severity: str = "info", before: int | None = None, limit: int = 100) -> list[str]:
    return [one.message for one in recent.newest(severity=severity, before=before, limit=limit)]


def test_the_newest_lines_come_first_from_a_severity_on() -> None:
    recent = RecentLog()
    with kept_in(recent):
        log.debug("a detail")
        log.info("a notice")
        log.warning("a warning")
        log.error("an error")
        log.critical("the end")
    log.error("after it")
    assert texts(recent) == ["the end", "an error", "a warning", "a notice"]
    assert texts(recent, "warning") == ["the end", "an error", "a warning"]
    assert texts(recent, "error") == ["the end", "an error"]
    assert [one.level for one in recent.newest(severity="error", before=None, limit=9)] == ["error", "error"]


def test_lines_come_in_pages() -> None:
    recent = RecentLog()
    with kept_in(recent):
        for number in range(5):
            log.info("line %d", number)
    assert texts(recent, limit=2) == ["line 4", "line 3"]
    third = recent.newest(severity="info", before=None, limit=2)[-1]
    assert texts(recent, before=third.number, limit=2) == ["line 2", "line 1"]


def test_lines_displace_none_of_another_severity_and_all_are_bounded() -> None:
    """A participant can fail in each round, which is a warning and must not hide the server's errors."""
    recent = RecentLog(kept=2)
    with kept_in(recent):
        log.warning("first")
        log.error("disk is full")
        for number in range(100):
            log.info("round %d", number)
            log.warning("p1 failed in round %d", number)
        log.error("second")
        log.error("third")
    assert texts(recent, "error") == ["third", "second"]
    assert texts(recent, "warning") == ["third", "second", "p1 failed in round 99", "p1 failed in round 98"]
    assert len(texts(recent)) == 6


def test_a_line_has_its_run_participant_operator_and_error_code() -> None:
    recent = RecentLog()
    recent.addFilter(ContextFilter())
    with kept_in(recent), about(run="r1", participant="p1"):
        error = UnavailableError("store.commit", "the disk is full", "make room")
        log.error("not stored: %s", error.logged, extra={"operator": "dora"})
    (line,) = recent.newest(severity="info", before=None, limit=1)
    assert (line.run, line.participant, line.operator, line.code) == ("r1", "p1", "dora", "store.commit")
    assert (line.logger, line.level) == ("atoll.server.somewhere", "error")


def test_details_of_the_servers_machine_are_left_out() -> None:
    """Paths, tracebacks, and texts of errors that are not Atoll's own."""
    recent = RecentLog()
    unavailable = UnavailableError("store.commit", "the disk is full", "make room", where=SECRET)
    with kept_in(recent):
        log.warning("%s could not be removed", SECRET)
        log.warning("not tidied: %s", OSError(28, "No space left on device", str(SECRET)))
        log.warning("not stored: %s", unavailable.logged)
        log.warning("not stored: %s", unavailable)
        log.warning(unavailable)
        log.error("evaluator %s failed", "auc", exc_info=LookupError("patient 17"))
    said = str(unavailable.detail)
    assert texts(recent) == [
        "evaluator auc failed (LookupError)",
        said,
        f"not stored: {said}",
        f"not stored: {said}",
        "not tidied: No space left on device",
        "spool could not be removed",
    ]


def test_text_of_others_is_made_printable_and_cut() -> None:
    recent = RecentLog()
    with kept_in(recent):
        log.warning("declined: %s", "\x1b[2J\r\n" + "x" * 10_000)
        logging.getLogger("sqlalchemy.engine").warning("another library's line")
    (text,) = texts(recent)
    assert text.startswith(r"declined: \x1b[2J\r\n")
    assert len(text) < 2 * MAX_MESSAGE_CHARS


def test_a_line_that_cannot_be_made_stops_no_caller(capfd: pytest.CaptureFixture[str]) -> None:
    recent = RecentLog()
    with kept_in(recent):
        recent.handle(logging.makeLogRecord({"msg": "%d", "args": ("x",), "levelno": logging.ERROR, "name": "atoll"}))
    assert texts(recent) == []
    assert "TypeError" in capfd.readouterr().err


def test_threads_may_log_while_lines_are_read() -> None:
    recent = RecentLog(kept=50)

    def write() -> None:
        for _ in range(300):
            log.warning("line")

    with kept_in(recent):
        writers = [threading.Thread(target=write) for _ in range(4)]
        for one in writers:
            one.start()
        while any(one.is_alive() for one in writers):
            texts(recent)
        for one in writers:
            one.join()
    numbers = [one.number for one in recent.newest(severity="info", before=None, limit=50)]
    assert numbers == list(range(1200, 1150, -1))
