"""Gauges, measured on request: connected participants, queues, disk, expiry of certificates."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import grpc
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

import atoll.server

BROKEN = "broken"


@dataclass(frozen=True)
class Gauges:
    """Measurements of the coordinator at one moment.

    Attributes:
        connected: participants with an open check-in stream, by kind.
        runs: number of runs that have not ended, by status; ``BROKEN`` if the log is unreadable.
        members: members of open rounds, by status, except rounds with secret draws.
        queues: waiting items by queue: events of runs, database writes, calls for its threads, instructions to
            participants.
        stored_bytes: bytes on disk of models, uploads, database.
        certificate_ends: epoch seconds at which certificates expire, by holder.
        workers: number of serving ingest workers; ``worker_restarts`` counts unexpected exits.
        disk_free_bytes: free space of the data directory's file system, which has ``disk_bytes``; with less than
            ``disk_reserve_bytes`` the server accepts no more work.
        oldest_round_s: age of the oldest open round; 0 without one.
        standbys: number of other servers that can take over.
    """

    connected: Mapping[str, int] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)
    members: Mapping[str, int] = field(default_factory=dict)
    queues: Mapping[str, int] = field(default_factory=dict)
    stored_bytes: Mapping[str, int] = field(default_factory=dict)
    certificate_ends: Mapping[str, float] = field(default_factory=dict)
    workers: int = 0
    worker_restarts: int = 0
    disk_free_bytes: int = 0
    disk_bytes: int = 0
    disk_reserve_bytes: int = 0
    oldest_round_s: float = 0.0
    standbys: int = 0


def families(now: Gauges) -> Iterator[Metric]:
    """The gauges as Prometheus' metrics."""
    build = GaugeMetricFamily("atoll_build_info", "Versions; always 1.", labels=["version", "python", "grpc"])
    build.add_metric([atoll.server.__version__, platform.python_version(), grpc.__version__], 1)
    yield build
    yield _by(
        "atoll_participants_connected", "Participants with an open check-in stream, by kind.", "kind", now.connected
    )
    yield _by("atoll_runs", "Runs that have not ended, by status; broken: the log is damaged.", "status", now.runs)
    yield _by(
        "atoll_open_round_members",
        "Members of rounds in progress, by status; rounds with secret draws are left out.",
        "status",
        now.members,
    )
    yield _by("atoll_queue_length", "Items that wait, by queue.", "queue", now.queues)
    yield _by("atoll_stored_bytes", "Bytes on disk: models, uploads, database.", "what", now.stored_bytes)
    yield _by(
        "atoll_certificate_expiry_timestamp_seconds",
        "Time at which the certificates of the authority and of this server expire.",
        "certificate",
        now.certificate_ends,
    )
    yield GaugeMetricFamily("atoll_workers", "Ingest worker processes that are running.", now.workers)
    yield CounterMetricFamily(
        "atoll_worker_restarts", "Ingest workers that ended by themselves and were started again.", now.worker_restarts
    )
    yield GaugeMetricFamily(
        "atoll_disk_free_bytes", "Free bytes on the data directory's file system.", now.disk_free_bytes
    )
    yield GaugeMetricFamily(
        "atoll_disk_reserve_bytes",
        "Free bytes below which uploads are refused and rounds wait.",
        now.disk_reserve_bytes,
    )
    yield GaugeMetricFamily("atoll_disk_size_bytes", "Size of the data directory's file system.", now.disk_bytes)
    yield GaugeMetricFamily(
        "atoll_oldest_round_age_seconds",
        "Age of the oldest attempt at a round in progress; 0 if there is none.",
        now.oldest_round_s,
    )
    yield standing_by(0)
    yield GaugeMetricFamily("atoll_standby_servers", "Standby servers that can take over.", now.standbys)


def standing_by(value: int) -> Metric:
    """The metric of a server's role: 1 as a standby, 0 if active."""
    return GaugeMetricFamily("atoll_standing_by", "1 while this server waits for another one to fail.", value)


def _by(name: str, documentation: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=[label])
    for word, value in sorted(values.items()):
        family.add_metric([word], value)
    return family
