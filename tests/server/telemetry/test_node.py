import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from atoll.server.telemetry import node
from atoll.server.telemetry.node import NodeFigures, of_nodes
from tests.patience import WAIT_S


def value_of(figures: NodeFigures, name: str, **labels: str) -> float | None:
    return figures.registry.get_sample_value(name, labels)


def test_what_the_meter_counts_is_shown() -> None:
    figures = NodeFigures()
    figures.meter.uploaded_bytes += 7
    figures.meter.committed(0.02)
    figures.meter.folded(0.02)
    with figures.meter.upload(), figures.meter.download():
        assert (value_of(figures, "atoll_uploads_open"), value_of(figures, "atoll_downloads_open")) == (1, 1)
    assert value_of(figures, "atoll_uploads_open") == 0
    assert value_of(figures, "atoll_upload_bytes_total") == 7
    assert value_of(figures, "atoll_fold_duration_seconds_count") == 1
    assert value_of(figures, "atoll_upload_commit_duration_seconds_bucket", le="0.05") == 1


def test_error_codes_have_a_bound() -> None:
    figures = NodeFigures()
    for number in range(node.MAX_CODES + 10):
        figures.meter.refused(f"area.code{number}")
    figures.meter.refused("area.code3")
    assert value_of(figures, "atoll_refused_calls_total", code="area.code3") == 2
    assert value_of(figures, "atoll_refused_calls_total", code="other") == 10


async def test_the_lag_of_the_event_loop_is_measured_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    fired = asyncio.Event()

    def observe(_: object, seconds: float) -> None:
        assert seconds >= 0.0
        fired.set()

    monkeypatch.setattr("atoll.server.telemetry.node.Histogram.observe", observe)
    monkeypatch.setattr(node, "LAG_INTERVAL_S", 0.01)
    figures = NodeFigures()
    figures.start()
    await asyncio.wait_for(fired.wait(), WAIT_S)
    figures.stop()
    assert figures._timer is not None
    assert figures._timer.cancelled()


def test_figures_of_processes_are_told_apart() -> None:
    one, other = NodeFigures(), NodeFigures()
    other.meter.uploaded_bytes = 5
    text = other.exposition().decode()
    merged = {
        family.name: family
        for family in of_nodes([("main", one.registry.collect()), ("worker-0", text_string_to_metric_families(text))])
    }
    samples = {sample.labels["node"]: sample.value for sample in merged["atoll_upload_bytes"].samples}
    assert samples == {"main": 0.0, "worker-0": 5.0}
    assert merged["atoll_fold_duration_seconds"].type == "histogram"
    assert not [name for name in merged if name.endswith("_created")]
    assert not [one for family in merged.values() for one in family.samples if one.name.endswith("_created")]
