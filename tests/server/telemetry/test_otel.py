from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from atoll.server.control import PHASES
from atoll.server.rounds import Invite, Patience, Phase, RecordRound, RoundKey, RunState, Started
from atoll.server.rounds.effects import Effect
from atoll.server.runs.stepping import Entry, Played
from atoll.server.telemetry.otel import RoundTracer
from atoll.server.telemetry.run_telemetry import tracer_of
from atoll.server.telemetry.trace_ids import span_id, trace_id, traceparent
from atoll.text.installing import install_hint
from tests.collector import Collector, Span
from tests.patience import WAIT_S
from tests.server.rounds.scenario import policy
from tests.server.telemetry.test_rounds import ENDED, KEY, MEMBERS

pytestmark = pytest.mark.slow

RUN = "r1"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


def entry(*effects: Effect) -> Entry:
    state = RunState(RUN, policy(), "m")
    return Entry(state, state, 0, (Played(Started(), 11.5, True, effects),))


def secret_entry(*effects: Effect) -> Entry:
    state = RunState(RUN, policy(patience=Patience.DEADLINE), "m")
    assert state.policy.secret_draw
    return Entry(state, state, 0, (Played(Started(), 11.5, True, effects),))


def named(spans: list[Span], name: str) -> Span:
    (found,) = [one for one in spans if one.name == name]
    return found


async def test_an_attempt_is_one_trace(collector: Collector) -> None:
    tracer = RoundTracer()
    tracer.stored(entry(Invite(KEY, ("pa", "pb"))))
    with tracer.working(RUN, "fold", KEY, "another"):
        await asyncio.sleep(0)
    with pytest.raises(OSError, match="disk"), tracer.working(RUN, "fold", KEY, "the update"):
        raise OSError("disk")
    with tracer.working(RUN, "tell", KEY, ""), tracer.working(RUN, "finish", None, ""):
        pass
    tracer.stored(entry(RecordRound(ENDED)))
    tracer.close()
    spans = collector.until(lambda found: len(found) >= 6 + len(PHASES))
    own = ["fold", "fold", "invite", "participant", "participant", "round"]
    assert sorted(one.name for one in spans) == sorted([*own, *PHASES])
    assert {one.trace for one in spans} == {f"{trace_id(RUN, KEY):032x}"}
    root = named(spans, "round")
    assert (root.id, root.parent) == (f"{span_id(RUN, KEY):016x}", "")
    assert (root.start_ns, root.end_ns) == (10 * 10**9, 22 * 10**9)
    collecting = named(spans, "collect")
    assert (collecting.start_ns, collecting.end_ns) == (11_500_000_000, 20 * 10**9)
    assert (root.attributes["atoll.outcome"], root.attributes["atoll.reported"]) == ("released", "1")
    assert {one.parent for one in spans if one is not root} == {root.id}
    assert [one.name for one in spans if one.failed] == ["fold", "participant"]
    late = next(one for one in spans if one.attributes.get("atoll.participant") == "pb")
    assert (late.id, late.attributes["atoll.status"]) == (f"{span_id(RUN, KEY, 'pb'):016x}", "timed_out")
    assert tracer.traceparent(RUN, KEY, "pb") == traceparent(RUN, KEY, "pb", sampled=True)


def test_a_trace_of_a_secret_draw_neither_names_nor_counts_members(collector: Collector) -> None:
    tracer = RoundTracer()
    tracer.stored(secret_entry(Invite(KEY, ("pa", "pb"))))
    tracer.stored(secret_entry(RecordRound(ENDED)))
    tracer.close()
    spans = collector.until(lambda found: len(found) >= 1 + len(PHASES))
    assert sorted(one.name for one in spans) == sorted(["round", *PHASES])
    names = {name for one in spans for name in one.attributes}
    assert names == {"atoll.run", "atoll.round", "atoll.attempt", "atoll.kind", "atoll.outcome", "atoll.reason"}


@pytest.mark.parametrize("name", ["", "hospital-server"])
def test_the_service_has_its_own_name_unless_the_operator_gives_another(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", name)
    tracer = RoundTracer()
    tracer.stored(entry(RecordRound(ENDED)))
    tracer.close()
    assert {one.service for one in collector.until(bool)} == {name or "atoll-server"}


def test_an_abandoned_attempt_failed(collector: Collector) -> None:
    tracer = RoundTracer()
    given_up = replace(ENDED, phase=Phase.ABANDONED, opened_at=0.0, reason="too few")
    tracer.stored(entry(RecordRound(given_up)))
    tracer.close()
    assert named(collector.until(bool), "round").failed


def test_a_trace_is_sampled_whole_or_not_at_all(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    tracer = RoundTracer()
    keys = [RoundKey(number, 0) for number in range(64)]
    for key in keys:
        with tracer.working(RUN, "fold", key, ""):
            pass
        tracer.stored(entry(RecordRound(replace(ENDED, key=key))))
    sampled = {f"{trace_id(RUN, key):032x}" for key in keys if tracer.traceparent(RUN, key, "pa").endswith("-01")}
    tracer.close()
    each = 1 + len(PHASES) + len(MEMBERS) + 1
    spans = collector.until(lambda found: len(found) >= each * len(sampled))
    assert 0 < len(sampled) < len(keys)
    assert {one.trace for one in spans} == sampled
    assert len(spans) == each * len(sampled)


def test_a_missing_extra_is_warned_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "atoll.server.telemetry.otel", None)
    assert tracer_of({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}) is None
    assert install_hint("otel") in caplog.text


def test_without_traces_opentelemetry_is_not_even_loaded() -> None:
    script = (
        "import sys\n"
        "import atoll.server.process.server\n"
        "from atoll.server.telemetry.run_telemetry import tracer_of\n"
        "assert tracer_of({}) is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
