"""Spans of rounds with OpenTelemetry's SDK; needs the extra ``otel``.

An attempt at a round is one trace. Its root span and the spans of its phases and members are created when it has ended,
with the times recorded by the engine, so they are complete even if the server was restarted in between. Invitations and
folds are separate spans, created when they are done.

For a secret draw, a trace has the round and its phases, but nothing that names or counts members, since more people
read traces than use the operators' commands.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from threading import Thread

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from atoll.server.rounds import Invite, MemberStatus, Phase, RecordRound, RoundKey, RoundState
from atoll.server.telemetry.durations import phase_seconds
from atoll.server.telemetry.observer import Observer, StoredEvents
from atoll.server.telemetry.trace_ids import span_id, trace_id, traceparent

SERVICE = "atoll-server"
CLOSE_S = 3.0
"""Seconds that the exiting process waits for a collector."""
STEPS = frozenset({"fold"})
_LEFT = frozenset({MemberStatus.FAILED, MemberStatus.REJECTED, MemberStatus.SILENT, MemberStatus.TIMED_OUT})

Facts = Mapping[str, str | int | float]


class _ChosenIds(RandomIdGenerator):
    """Generates random ids, except for a span that is started within ``choose``."""

    def __init__(self) -> None:
        self._chosen: ContextVar[tuple[int, int] | None] = ContextVar("atoll_chosen_span", default=None)

    @contextlib.contextmanager
    def choose(self, trace_number: int, span_number: int) -> Iterator[None]:
        token = self._chosen.set((trace_number, span_number))
        try:
            yield
        finally:
            self._chosen.reset(token)

    def generate_trace_id(self) -> int:
        chosen = self._chosen.get()
        return super().generate_trace_id() if chosen is None else chosen[0]

    def generate_span_id(self) -> int:
        chosen = self._chosen.get()
        return super().generate_span_id() if chosen is None else chosen[1]


class RoundTracer(Observer):
    """Creates the traces of rounds, and sends them according to OpenTelemetry's environment variables."""

    def __init__(self) -> None:
        self._ids = _ChosenIds()
        named = SERVICE_NAME in OTELResourceDetector().detect().attributes
        resource = Resource.create({} if named else {SERVICE_NAME: SERVICE})
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("atoll.server")

    def stored(self, stored: StoredEvents) -> None:
        """See ``Observer``."""
        secret = stored.after.policy.secret_draw
        for played in stored.played:
            for effect in played.effects:
                if isinstance(effect, Invite) and not secret:
                    facts = {"atoll.members": len(effect.participants)}
                    parent = self._root(stored.run, effect.key)
                    span = self._tracer.start_span("invite", parent, attributes=facts, start_time=_ns(played.at))
                    span.end()
                elif isinstance(effect, RecordRound):
                    self._record_round(stored.run, effect.round, secret=secret)

    @contextlib.contextmanager
    def working(self, run: str, step: str, key: RoundKey | None, what: str) -> Iterator[None]:
        """See ``Observer``; the step's span records exceptions."""
        if key is None or step not in STEPS:
            yield
            return
        facts = _facts(run, key) | ({"atoll.what": what} if what else {})
        with self._tracer.start_as_current_span(step, self._root(run, key), attributes=facts):
            yield

    def traceparent(self, run: str, key: RoundKey, participant: str) -> str:
        """See ``Observer``."""
        return traceparent(run, key, participant, sampled=self._is_sampled(run, key))

    def close(self) -> None:
        """Send the pending spans; takes at most ``CLOSE_S`` seconds."""
        ending = Thread(target=self._provider.shutdown, name="traces", daemon=True)
        ending.start()
        ending.join(CLOSE_S)

    def _record_round(self, run: str, ended: RoundState, *, secret: bool) -> None:
        key = ended.key
        facts = _facts(run, key) | {
            "atoll.kind": ended.kind.value,
            "atoll.outcome": ended.phase.value,
            "atoll.reason": ended.reason,
        }
        if not secret:
            facts |= {"atoll.cohort": len(ended.roster), "atoll.reported": ended.roster.reported}
        with self._ids.choose(trace_id(run, key), span_id(run, key)):
            root = self._tracer.start_span("round", Context(), attributes=facts, start_time=_ns(ended.created_at))
        if ended.phase is Phase.ABANDONED:
            root.set_status(Status(StatusCode.ERROR, ended.reason))
        root.end(_ns(max(ended.created_at, ended.ended_at)))
        self._record_phases(run, ended)
        if not secret:
            self._record_members(run, ended)

    def _record_phases(self, run: str, ended: RoundState) -> None:
        parent, at = self._root(run, ended.key), ended.created_at
        for name, seconds in phase_seconds(ended).items():
            span = self._tracer.start_span(name, parent, attributes=_facts(run, ended.key), start_time=_ns(at))
            at += seconds
            span.end(_ns(at))

    def _record_members(self, run: str, ended: RoundState) -> None:
        key, parent = ended.key, self._root(run, ended.key)
        for member in ended.roster if ended.opened_at else ():
            facts = _facts(run, key) | {
                "atoll.participant": member.participant,
                "atoll.status": member.status.value,
                "atoll.detail": member.detail,
            }
            with self._ids.choose(trace_id(run, key), span_id(run, key, member.participant)):
                span = self._tracer.start_span("participant", parent, attributes=facts, start_time=_ns(ended.opened_at))
            if member.status in _LEFT:
                span.set_status(Status(StatusCode.ERROR, member.detail))
            span.end(_ns(max(ended.opened_at, member.at)))

    def _root(self, run: str, key: RoundKey) -> Context:
        """A context whose current span is the attempt's, which is created after the attempt has ended."""
        flags = TraceFlags(TraceFlags.SAMPLED if self._is_sampled(run, key) else TraceFlags.DEFAULT)
        root = SpanContext(trace_id(run, key), span_id(run, key), is_remote=True, trace_flags=flags)
        return trace.set_span_in_context(NonRecordingSpan(root), Context())

    def _is_sampled(self, run: str, key: RoundKey) -> bool:
        """Whether the sampler takes the trace; decided by the id, so the answer is always the same."""
        said = self._provider.sampler.should_sample(None, trace_id(run, key), "round")
        return said.decision is Decision.RECORD_AND_SAMPLE


def _facts(run: str, key: RoundKey) -> dict[str, str | int | float]:
    return {"atoll.run": run, "atoll.round": key.round, "atoll.attempt": key.attempt}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
