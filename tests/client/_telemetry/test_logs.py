import json
import logging
import subprocess
import sys

import pytest

from atoll.client._telemetry.logs import JsonLines, RoundFilter, TextLines, about
from atoll.client.task import RoundKey
from tests.patience import WAIT_S

SCRIPT = """
import logging
from atoll.client._telemetry.logs import configure_logging
configure_logging("warning", as_json=True)
logging.getLogger("atoll.client").info("not shown")
logging.getLogger("atoll.client").warning("shown %d", 7)
"""


def record(**fields: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "atoll.client", "levelname": "WARNING", "msg": "two\nlines", **fields})
    made.created, made.msecs = 1_700_000_000.25, 250.0
    assert RoundFilter().filter(made)
    return made


def test_lines_name_the_round_that_they_are_about() -> None:
    with about(RoundKey("r1", 3, 1)):
        inside = record()
    found = json.loads(JsonLines().format(inside))
    assert found == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "atoll.client",
        "message": "two\nlines",
        "run": "r1",
        "round": 3,
        "attempt": 1,
    }
    assert TextLines().format(inside).endswith("[run=r1 round=4.2]")
    assert "run" not in json.loads(JsonLines().format(record()))
    assert TextLines().format(record()).endswith("lines")


def test_exceptions_are_whole() -> None:
    with pytest.raises(ValueError, match="deep") as raised:
        int("deep")
    made = record(exc_info=(raised.type, raised.value, raised.tb))
    assert "invalid literal" in json.loads(JsonLines().format(made))["exception"]


def test_a_process_logs_as_told() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=WAIT_S, check=True)
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["message"] == "shown 7"


TWICE = """
import logging
from atoll.client._telemetry.logs import OBSERVED, configure_logging, same_output
configure_logging("warning", as_json=False, observed=not same_output())
logging.getLogger("atoll.client").error("an event says this, too", extra=OBSERVED)
logging.getLogger("atoll.client").error("only the log says this")
"""


@pytest.mark.parametrize(("errors_to", "lines"), [(subprocess.STDOUT, 1), (subprocess.PIPE, 2)])
def test_what_events_say_is_not_logged_to_the_same_output_again(errors_to: int, lines: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWICE], stdout=subprocess.PIPE, stderr=errors_to, text=True, timeout=WAIT_S, check=True
    )
    said = (done.stderr or done.stdout).splitlines()
    assert len(said) == lines
    assert "only the log says this" in said[-1]
