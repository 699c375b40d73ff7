"""A participant's spans: collectors are often the operator's, so they hold no text that may quote data."""

from __future__ import annotations

import pytest

from atoll.client._telemetry.otel import OtelTracing
from atoll.client.testing import make_task
from tests.collector import Collector


def test_a_span_tells_the_type_of_an_error_and_not_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    with Collector() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        tracing = OtelTracing()
        with pytest.raises(ValueError, match="Jane"), tracing.task(make_task()), tracing.step("fit"):
            raise ValueError("could not convert string to float: 'Jane Doe, HIV+'")
        tracing.close()
        spans = collector.until(lambda found: len(found) >= 2)
        assert {one.name for one in spans if one.failed} == {"task", "fit"}
        assert b"Jane" not in collector.received
        assert b"ValueError" in collector.received
