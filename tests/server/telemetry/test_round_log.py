import logging

import pytest

from atoll.server.rounds import Event, MemberFailed, RecordRound, Rejected, RunState, Started
from atoll.server.rounds.effects import Effect
from atoll.server.runs.stepping import Entry, Played
from atoll.server.telemetry.round_log import log_stored
from tests.server.rounds.scenario import policy
from tests.server.telemetry.test_rounds import ENDED, KEY


def log_record(caplog: pytest.LogCaptureFixture, event: Event, *effects: Effect) -> logging.LogRecord:
    state = RunState("r1", policy(), "m")
    with caplog.at_level(logging.INFO):
        log_stored(Entry(state, state, 0, (Played(event, 1.0, True, effects),)))
    (line,) = caplog.records
    return line


def test_an_ended_round_is_reported_with_run_and_round(caplog: pytest.LogCaptureFixture) -> None:
    line = log_record(caplog, Started(), RecordRound(ENDED))
    assert line.getMessage().startswith(
        "train round 1 released after 12.000 s, of which 1.000 s until its members were drawn: 1 of 2 reported"
    )
    assert (line.__dict__["run"], line.__dict__["round"]) == ("r1", KEY)


@pytest.mark.parametrize(("kind", "level"), [(MemberFailed, "INFO"), (Rejected, "WARNING")])
def test_a_member_that_fails_is_reported_on_one_line(
    caplog: pytest.LogCaptureFixture, kind: type[MemberFailed] | type[Rejected], level: str
) -> None:
    line = log_record(caplog, kind(KEY, "pa", "out of\nmemory"))
    assert (line.levelname, line.__dict__["participant"], line.__dict__["run"]) == (level, "pa", "r1")
    assert r"out of\nmemory" in line.getMessage()
