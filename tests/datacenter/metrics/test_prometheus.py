"""The page for Prometheus, over real sockets."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from threading import Timer
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from atoll.datacenter.metrics import prometheus
from atoll.datacenter.metrics.prometheus import MetricsPortError, Prometheus
from tests.datacenter.metrics.records import EVALUATION, FACTS, record
from tests.patience import WAIT_S


@pytest.fixture
def served() -> Iterator[Prometheus]:
    sink = Prometheus("127.0.0.1", 0, FACTS)
    yield sink
    sink.close()


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_values_are_the_last_record_and_counters_add_up(served: Prometheus) -> None:
    served.step(record(step=4, loss=5.0))
    served.step(record(step=8, loss=4.0, bubble_share=0.25))
    served.evaluated(EVALUATION)
    found = scraped(served.port)
    assert found["atoll_silo_loss"] == 4.0
    assert found["atoll_silo_held_out_loss"] == 2.0
    assert found["atoll_silo_held_out_perplexity"] == pytest.approx(7.389, abs=1e-3)
    assert found["atoll_silo_step"] == 8
    assert found["atoll_silo_tokens_total"] == 2 * 8192
    assert found["atoll_silo_training_seconds_total"] == 4.0
    assert found["atoll_silo_mfu_ratio"] == pytest.approx(4096 * 6000 / 2e9)
    assert found["atoll_silo_bubble_ratio"] == 0.25
    assert found["atoll_silo_world_size"] == 2


def test_other_paths_are_not_there(served: Prometheus) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{served.port}/", timeout=WAIT_S)


def test_a_scraper_that_says_nothing_is_cut_off_and_the_next_is_answered(
    served: Prometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first connection alone is cut off early: the next one has the time that a busy machine needs."""
    limits, asked = iter((0.2, WAIT_S)), list[float]()

    def timer(seconds: float, *cut: Any) -> Timer:
        asked.append(seconds)
        return Timer(next(limits), *cut)

    monkeypatch.setattr(prometheus, "Timer", timer)
    with socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S) as silent:
        assert scraped(served.port)["atoll_silo_total_steps"] == 100
        assert silent.recv(1) == b"", "closed"
    assert asked == [prometheus.TOTAL_S] * 2


def test_a_port_that_is_taken_is_refused_naming_it(served: Prometheus) -> None:
    with pytest.raises(MetricsPortError, match=rf"metrics.port = {served.port}: cannot listen on 127.0.0.1"):
        Prometheus("127.0.0.1", served.port, FACTS)


def test_the_port_is_free_after_close() -> None:
    sink = Prometheus("127.0.0.1", 0, FACTS)
    sink.close()
    Prometheus("127.0.0.1", sink.port, FACTS).close()
