import logging

import pytest

from atoll.server.telemetry import refusal_log as audit
from atoll.server.telemetry.refusal_log import REFUSAL_INTERVAL_S, RefusalLog, one_line

log = logging.getLogger(__name__)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_text_stays_on_one_line_and_is_bounded() -> None:
    assert one_line("a\r\nb\x1b[2J\x00\u2028ü") == r"a\r\nb\x1b[2J\x00\u2028ü"
    assert one_line("x" * 1000) == "x" * 200
    assert one_line("") == ""


def test_a_subject_is_logged_once_per_interval(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refusals = RefusalLog(log, clock)
    for clock.now, subject in ((0.0, "p1"), (1.0, "p1"), (1.0, "p2"), (REFUSAL_INTERVAL_S, "p1")):
        refusals.warn(subject, ValueError("revoked\nlost"))
    found = [(record.levelname, record.getMessage(), vars(record)["participant"]) for record in caplog.records]
    assert found == [("WARNING", r"refused: revoked\nlost", subject) for subject in ("p1", "p2", "p1")]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_SUBJECTS", 2)
    refusals = RefusalLog(log, Clock())
    for number in range(5):
        refusals.warn(f"p{number}", ValueError("expired"))
    assert list(refusals._warned_at) == ["p3", "p4"]
