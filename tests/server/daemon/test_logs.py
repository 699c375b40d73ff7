import json
import logging
import subprocess
import sys
from datetime import datetime

import pytest

from atoll.server.daemon.logs import JsonFormatter, TextFormatter
from atoll.server.rounds import RoundKey

SCRIPT = """
import logging
from atoll.server.daemon.logs import configure_logging, logging_settings
configure_logging("warning", as_json=True)
assert logging_settings() == ("warning", True)
log = logging.getLogger("x")
log.info("not shown")
log.warning("shown %d", 7, extra={"run": "r1"})
logging.getLogger("alembic").info("not shown")
configure_logging("info", as_json=False)
log.info("plain", extra={"round": 3})
"""


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "atoll.x", "levelname": "ERROR", "levelno": 40, "msg": message, **extra})
    made.created, made.msecs = 1_700_000_000.25, 250.0
    return made


def test_json_is_one_object_per_line() -> None:
    line = JsonFormatter().format(record("two\nlines", run="r1", participant="p1"))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "error",
        "logger": "atoll.x",
        "message": "two\nlines",
        "run": "r1",
        "participant": "p1",
    }
    assert datetime.fromisoformat(json.loads(line)["time"])


def test_values_that_json_does_not_know_are_written_as_text() -> None:
    assert json.loads(JsonFormatter().format(record("x", round=RoundKey(3, 1))))["round"] == "3.1"


def test_exceptions_are_whole() -> None:
    with pytest.raises(ValueError, match="invalid literal") as raised:
        int("deep")
    entry = json.loads(JsonFormatter().format(record("x", exc_info=(raised.type, raised.value, raised.tb))))
    assert "ValueError: invalid literal" in entry["exception"]


def test_text_that_others_chose_forges_no_line_and_no_colour() -> None:
    line = TextFormatter().format(record("said: x\n2026 INFO forged\x1b[31m\u2028y"))
    assert line.endswith("said: x 2026 INFO forged [31m y")


@pytest.mark.parametrize(("extra", "tail"), [({}, "x"), ({"run": "r1", "round": 2}, "x [run=r1 round=2]")])
def test_text_ends_with_what_is_known(extra: dict[str, object], tail: str) -> None:
    line = TextFormatter().format(record("x", **extra))
    assert line.endswith(f"ERROR   atoll.x: {tail}")


def test_a_process_logs_as_told() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=30, check=True)
    first, second = done.stderr.strip().split("\n")
    assert json.loads(first)["message"] == "shown 7"
    assert second.endswith("INFO    x: plain [round=3]")
