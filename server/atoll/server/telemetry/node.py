"""The metrics of one process: transfers, folds, refusals, the event loop, the process itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from atoll.server.ingest.transfer_meter import TransferMeter

WORK_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)
LAG_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
LAG_INTERVAL_S = 1.0
MAX_CODES = 256
"""Maximum number of error codes with their own series; the source has fewer."""
_OTHER = "other"


class NodeFigures:
    """The metrics of one process, in its own registry; its services count with ``meter``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._codes: set[str] = set()
        self._refused = Counter(
            "atoll_refused_calls", "Calls that ended with an error, by its code.", ["code"], registry=self.registry
        )
        folds = Histogram(
            "atoll_fold_duration_seconds",
            "Adding one update to a sum.",
            registry=self.registry,
            buckets=WORK_BUCKETS_S,
        )
        commits = Histogram(
            "atoll_upload_commit_duration_seconds",
            "Checking that an upload is whole and making it durable.",
            registry=self.registry,
            buckets=WORK_BUCKETS_S,
        )
        self._lag = Histogram(
            "atoll_event_loop_lag_seconds",
            "How late a timer of the event loop fires.",
            registry=self.registry,
            buckets=LAG_BUCKETS_S,
        )
        self.meter = TransferMeter(committed=commits.observe, folded=folds.observe, refused=self._refuse)
        self.registry.register(_Transfers(self.meter))
        ProcessCollector(registry=self.registry)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start to measure the running event loop."""
        loop = asyncio.get_running_loop()
        due = loop.time() + LAG_INTERVAL_S

        def fire() -> None:
            self._lag.observe(max(0.0, loop.time() - due))
            self.start()

        self._timer = loop.call_at(due, fire)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _refuse(self, code: str) -> None:
        if code not in self._codes and len(self._codes) >= MAX_CODES:
            code = _OTHER
        self._codes.add(code)
        self._refused.labels(code).inc()


class _Transfers:
    """Collects the meter's numbers on request."""

    def __init__(self, meter: TransferMeter) -> None:
        self._meter = meter

    def collect(self) -> Iterable[Metric]:
        """See ``prometheus_client``'s ``Collector``."""
        meter = self._meter
        yield CounterMetricFamily(
            "atoll_upload_bytes", "Payload bytes of updates received, repetitions included.", meter.uploaded_bytes
        )
        yield CounterMetricFamily("atoll_upload_chunks", "Chunks of updates received.", meter.uploaded_chunks)
        yield CounterMetricFamily("atoll_download_bytes", "Bytes of models sent, in messages.", meter.downloaded_bytes)
        yield CounterMetricFamily("atoll_download_chunks", "Chunks of models sent.", meter.downloaded_chunks)
        yield GaugeMetricFamily("atoll_uploads_open", "Upload streams under way.", meter.uploads_open)
        yield GaugeMetricFamily("atoll_downloads_open", "Download streams under way.", meter.downloads_open)
        yield GaugeMetricFamily("atoll_check_ins_open", "Check-in streams that end here.", meter.check_ins_open)


def plain(families: Iterable[Metric]) -> Iterator[Metric]:
    """The families without the ``_created`` series, which would double their number."""
    for family in families:
        if not family.name.endswith("_created"):
            kept = Metric(family.name, family.documentation, family.type, family.unit)
            kept.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield kept


def of_nodes(nodes: Iterable[tuple[str, Iterable[Metric]]]) -> Iterator[Metric]:
    """Merge the families of several processes; the label ``node`` of each sample names its process."""
    found: dict[str, Metric] = {}
    for node, families in nodes:
        for family in plain(families):
            merged = found.setdefault(family.name, Metric(family.name, family.documentation, family.type, family.unit))
            merged.samples += [one._replace(labels={"node": node, **one.labels}) for one in family.samples]
    yield from found.values()
