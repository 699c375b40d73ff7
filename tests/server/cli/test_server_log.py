from __future__ import annotations

import json

import pytest

from atoll.operator import BadInputError, Operator
from atoll.server.cli.server import server
from atoll.wire.v1 import control_pb2
from tests.server.cli.conftest import NOW, Fake, Invoke, asked_for

LINES = [
    control_pb2.LogLine(
        number=3,
        logged_at=NOW + 2,
        level=control_pb2.LOG_LEVEL_ERROR,
        logger="atoll.server.runs",
        message="run r1 has failed",
        run="r1",
        code="run.log",
    ),
    control_pb2.LogLine(number=2, logged_at=NOW + 1, level=control_pb2.LOG_LEVEL_WARNING, message="disk is full"),
    control_pb2.LogLine(number=1, logged_at=NOW, level=control_pb2.LOG_LEVEL_INFO, message="starting"),
]


def test_the_newest_line_comes_last(fake: Fake, invoke: Invoke) -> None:
    fake.control.log_lines = LINES
    result = invoke(server, "log", "-n", "2")
    first, last = result.output.splitlines()
    assert "WARNING : disk is full" in first
    assert last.endswith("ERROR   atoll.server.runs: run r1 has failed [code=run.log]")
    assert asked_for(fake, control_pb2.ListLogLinesRequest)[0].limit == 2


def test_notices_can_be_left_out_and_json_has_all_fields(fake: Fake, invoke: Invoke) -> None:
    fake.control.log_lines = LINES
    found = json.loads(invoke(server, "log", "--level", "warning", "--json").stdout)
    assert [one["level"] for one in found] == ["warning", "error"]
    assert found[1] == {
        "number": 3,
        "logged_at": NOW + 2,
        "level": "error",
        "logger": "atoll.server.runs",
        "message": "run r1 has failed",
        "run": "r1",
        "participant": "",
        "operator": "",
        "code": "run.log",
    }


def test_a_log_without_lines(invoke: Invoke) -> None:
    assert invoke(server, "log").output == "no line is kept\n"


def test_lines_are_asked_for_page_by_page(fake: Fake) -> None:
    fake.control.log_lines = LINES
    with Operator.connect(fake.address, insecure=True) as operator:
        assert [one.number for one in operator.log_lines()] == [3, 2, 1]
        assert [one.number for one in operator.log_lines(2)] == [3, 2]
        with pytest.raises(BadInputError, match="level = 'debug'; allowed are info, warning, error"):
            operator.log_lines(level="debug")  # type: ignore[arg-type]
