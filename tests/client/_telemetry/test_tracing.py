import subprocess
import sys

import pytest

from atoll.client._telemetry.tracing import Tracing
from atoll.client._telemetry.tracing_setup import tracing_of
from atoll.text.installing import install_hint
from tests.patience import WAIT_S

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


def test_a_missing_extra_is_warned_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "atoll.client._telemetry.otel", None)
    assert type(tracing_of(ENDPOINT)) is Tracing
    assert install_hint("otel") in caplog.text


def test_without_traces_opentelemetry_is_not_even_loaded() -> None:
    script = (
        "import sys\n"
        "import atoll.client._session.session\n"
        "from atoll.client._telemetry.tracing_setup import tracing_of\n"
        "tracing_of({}).close()\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
