"""Metrics for Prometheus, served by a thread of rank 0."""

from __future__ import annotations

import contextlib
import socket
from http import HTTPStatus
from threading import Thread, Timer
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, make_wsgi_app

from atoll.datacenter.errors import DatacenterError
from atoll.processes.listening import Endable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from atoll.datacenter.metrics.record import Evaluation, RunFacts, StepRecord

IDLE_S = 5.0
"""Seconds without traffic after which a connection is closed."""
TOTAL_S = 10.0
"""Seconds after which a connection is closed in any case."""
WAITING = 5
"""Connections that may wait; one at a time is served, and the system refuses further ones."""


class MetricsPortError(DatacenterError):
    """The port for metrics is not available."""

    exit_code = 2


class Prometheus:
    """Serves ``/metrics``.

    Args:
        host: address to listen on.
        port: TCP port; 0: any free port, see the attribute.
        facts: facts of the job.

    Attributes:
        port: the port in use.

    Raises:
        MetricsPortError: if the port is not available.
    """

    def __init__(self, host: str, port: int, facts: RunFacts) -> None:
        self._facts = facts
        self._registry = CollectorRegistry()
        self._gauges = {name: Gauge(f"atoll_silo_{name}", text, registry=self._registry) for name, text in _GAUGES}
        self._counters = {
            name: Counter(f"atoll_silo_{name}", text, registry=self._registry) for name, text in _COUNTERS
        }
        about = {"job": facts.job, "layout": facts.layout, "flops_formula": facts.flops_formula}
        Info("atoll_silo_job", "What is trained, and how it is cut.", registry=self._registry).info(about)
        for name in ("world_size", "total_steps", "parameters", "flops_per_token"):
            Gauge(f"atoll_silo_{name}", _FACTS[name], registry=self._registry).set(getattr(facts, name))
        try:
            self._server = _listening(host, port, _only_metrics(self._registry))
        except (OSError, OverflowError) as error:
            raise MetricsPortError(
                f"metrics.port = {port}: cannot listen on {host}:{port}: {error}; choose another, or leave it out"
            ) from error
        self.port = self._server.server_port
        self._thread = Thread(target=self._server.serve, name="metrics", daemon=True)
        self._thread.start()

    def step(self, record: StepRecord) -> None:
        """Set the gauges and add to the counters."""
        for name, value in _values(record, self._facts).items():
            if value is not None:
                self._gauges[name].set(value)
        for name, amount in _amounts(record).items():
            self._counters[name].inc(amount)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Set the gauges of held-out data."""
        self._gauges["held_out_loss"].set(evaluation.loss)
        self._gauges["held_out_perplexity"].set(evaluation.perplexity)

    def close(self) -> None:
        """Stop listening."""
        self._server.end()
        self._thread.join()
        self._server.server_close()


_GAUGES = (
    ("step", "Optimiser steps taken since the job began."),
    ("loss", "Loss of the last step: sum of token losses / counted tokens."),
    ("learning_rate", "Learning rate of the last step."),
    ("gradient_norm", "Norm of the last step's gradient before clipping."),
    ("tokens_per_second", "Tokens per second, all ranks together."),
    ("step_seconds", "Mean seconds per step."),
    ("mfu_ratio", "Model FLOPs utilisation."),
    ("data_wait_ratio", "Share of the time spent waiting for data."),
    ("bubble_ratio", "Share of the time that a pipeline's rank is idle, mean over ranks."),
    ("communication_ratio", "Share of rank 0's last trace with communication in progress."),
    ("exposed_communication_ratio", "Share of it with only communication in progress; GPUs only."),
    ("peak_memory_bytes", "Peak memory of the fullest rank."),
    ("loss_scale", "Loss scale of float16 training."),
    ("privacy_epsilon", "Epsilon spent since the job began."),
    ("expert_load_ratio", "Tokens of the busiest expert / of the mean expert."),
    ("replica_groups", "Replica groups whose gradients are in the last step, with recovery in place."),
    ("replica_share_ratio", "Gradients of replica groups in the last record's steps / (steps * groups)."),
    ("replica_groups_lost", "Replica groups lost since the launcher began."),
    ("replica_groups_healed", "Replica groups that came back since the launcher began."),
    ("replica_groups_speculated", "Gradients in the last record's steps that another group computed for a late one."),
    ("held_out_loss", "Loss of the last evaluation: sum of token losses / counted tokens."),
    ("held_out_perplexity", "exp(loss) of the last evaluation."),
)
_COUNTERS = (
    ("tokens", "Tokens that went through the model since this process began."),
    ("steps", "Optimiser steps since this process began."),
    ("training_seconds", "Seconds spent on these steps."),
    ("data_wait_seconds", "Seconds spent waiting for data."),
)
_FACTS = {
    "world_size": "Ranks of the job.",
    "total_steps": "Optimiser steps of the job.",
    "parameters": "Parameters of the whole model.",
    "flops_per_token": "FLOPs of forward and backward passes for one token.",
}


def _values(record: StepRecord, facts: RunFacts) -> dict[str, float | None]:
    return {
        "step": record.step,
        "loss": record.loss,
        "learning_rate": record.lr,
        "gradient_norm": record.grad_norm,
        "tokens_per_second": record.tokens_per_s,
        "step_seconds": record.step_s,
        "mfu_ratio": facts.mfu(record.tokens_per_s),
        "data_wait_ratio": record.data_wait_share,
        "bubble_ratio": record.bubble_share,
        "communication_ratio": record.communication_share,
        "exposed_communication_ratio": record.exposed_share,
        "peak_memory_bytes": record.peak_memory_bytes,
        "loss_scale": record.loss_scale,
        "privacy_epsilon": record.epsilon,
        "expert_load_ratio": record.expert_load,
        "replica_groups": None if record.replicas is None else len(record.replicas),
        "replica_share_ratio": record.replica_share,
        "replica_groups_lost": record.replicas_lost,
        "replica_groups_healed": record.replicas_healed,
        "replica_groups_speculated": record.replicas_speculated,
    }


def _amounts(record: StepRecord) -> dict[str, float]:
    return {
        "tokens": record.tokens,
        "steps": record.steps,
        "training_seconds": record.seconds,
        "data_wait_seconds": record.data_wait_s,
    }


def _only_metrics(registry: CollectorRegistry) -> WSGIApplication:
    made: WSGIApplication = make_wsgi_app(registry)

    def answer(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environment.get("PATH_INFO") == "/metrics":
            return made(environment, start)
        start(f"{HTTPStatus.NOT_FOUND.value} Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"there is: /metrics\n"]

    return answer


class _Server(Endable, WSGIServer):
    request_queue_size = WAITING

    def finish_request(self, request: Any, client_address: Any) -> None:
        deadline = Timer(TOTAL_S, _cut_off, [request])
        deadline.daemon = True
        deadline.start()
        try:
            super().finish_request(request, client_address)
        finally:
            deadline.cancel()
            deadline.join()  # it must not close a descriptor that is in use again

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a scraper that has gone away."""


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's
        """Do not log scrapes."""


def _listening(host: str, port: int, application: WSGIApplication) -> _Server:
    server = (_ServerV6 if ":" in host else _Server)((host, port), _Handler)
    server.set_app(application)
    return server


def _cut_off(connection: socket.socket) -> None:
    """End reads and writes of another thread."""
    with contextlib.suppress(OSError):  # the peer has already closed it
        connection.shutdown(socket.SHUT_RDWR)
