import asyncio
import json
import logging
import subprocess
import sys
from datetime import datetime

import pytest

from atoll.server.errors import StorageError
from atoll.server.process.logs import FIELDS, ContextFilter, JsonFormatter, TextFormatter
from atoll.server.rounds import RoundKey
from atoll.server.telemetry.context import about, remember
from tests.patience import WAIT_S

SCRIPT = """
import logging
from atoll.server.process.logs import configure_logging, logging_settings
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
    assert json.loads(JsonFormatter().format(record("x", round=RoundKey(3, 1))))["round"] == "4.2"


def test_exceptions_are_whole() -> None:
    with pytest.raises(ValueError, match="invalid literal") as raised:
        int("deep")
    entry = json.loads(JsonFormatter().format(record("x", exc_info=(raised.type, raised.value, raised.tb))))
    assert "ValueError: invalid literal" in entry["exception"]


def test_text_that_others_chose_forges_no_line_and_no_colour() -> None:
    line = TextFormatter().format(record("said: x\n2026 INFO forged\x1b[31m\u2028y"))
    assert line.endswith("said: x\\n2026 INFO forged\\x1b[31m\\u2028y")


@pytest.mark.parametrize(("extra", "tail"), [({}, "x"), ({"run": "r1", "round": 2}, "x [run=r1 round=2]")])
def test_text_ends_with_what_is_known(extra: dict[str, object], tail: str) -> None:
    line = TextFormatter().format(record("x", **extra))
    assert line.endswith(f"ERROR   atoll.x: {tail}")


def test_a_process_logs_as_told() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=WAIT_S, check=True)
    first, second = done.stderr.strip().split("\n")
    assert json.loads(first)["message"] == "shown 7"
    assert second.endswith("INFO    x: plain [round=3]")


def passed(message: str, *args: object, **extra: object) -> dict[str, object]:
    """The fields of a record after the filter and JSON."""
    made = record(message, args=args, **extra)
    assert ContextFilter().filter(made)
    found: dict[str, object] = json.loads(JsonFormatter().format(made))
    return {name: found[name] for name in FIELDS if name in found}


async def test_lines_know_what_they_are_about_for_as_long_as_a_block_or_task_lasts() -> None:
    async def another_task() -> dict[str, object]:
        remember(participant="p2")
        return passed("x")

    with about(run="r1", round=RoundKey(3, 1)):
        assert passed("x") == {"run": "r1", "round": "4.2"}
        assert await asyncio.create_task(another_task()) == {"run": "r1", "round": "4.2", "participant": "p2"}
        assert passed("x", run="r2") == {"run": "r2", "round": "4.2"}
        with about(round=None, operator="admin"):
            assert passed("x") == {"run": "r1", "round": "4.2", "operator": "admin"}
    assert passed("x") == {}


def test_error_lines_carry_the_code() -> None:
    error = StorageError("store.commit", "not stored", "free some space", where="/a/path")
    assert passed("failed: %s", error) == {"code": "store.commit"}
    assert passed("failed: %s", error.detail) == {"code": "store.commit"}
    assert passed("failed: %s", error.logged) == {"code": "store.commit"}
    assert passed("failed", exc_info=(type(error), error, None)) == {"code": "store.commit"}
    assert passed("failed: %s", OSError("no code")) == {}
    assert str(error.logged) == "/a/path: not stored (free some space)"


def test_names_that_callers_chose_are_cut_and_on_one_line() -> None:
    with about(run="r" * 5000 + "\nforged"):
        assert passed("x") == {"run": "r" * 100}
    line = TextFormatter().format(record("x", run="r\n2026 ERROR forged"))
    assert "\n" not in line
