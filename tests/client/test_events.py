from __future__ import annotations

import json
import logging

import pytest

from atoll.client import RoundKey
from atoll.client.events import Announcer, Connected, Reported, Transferred, log_event

KEY = RoundKey("r1", 2, 0)


def test_events_are_flat_and_json_friendly() -> None:
    event = Reported(KEY, "counted", 7)
    assert event.as_dict() == {
        "event": "reported", "run": "r1", "round": 2, "attempt": 0, "disposition": "counted", "weight": 7,
    }  # fmt: skip
    json.dumps(event.as_dict())
    assert Connected("h:1", "p1", "0").as_dict()["event"] == "connected"


def test_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "atoll.client"):
        log_event(Reported(KEY, "counted", 7))
        log_event(Transferred(KEY, "upload", 1, 2))
    assert caplog.messages == ["reported: run=r1, round=2, attempt=0, disposition=counted, weight=7"]


def test_a_failing_observer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise ValueError("no terminal")

    Announcer(fail)(Reported(KEY, "counted", 7))
    assert "the observer failed at reported" in caplog.text
