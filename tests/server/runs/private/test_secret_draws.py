"""A secret draw leaves no trace: everything outside its run is the same, bit for bit, whoever is drawn.

Two servers play the same runs with the same reports. They differ only in the draws of the private runs: one
participant, the victim, is drawn on one server and not on the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client.samples import Sample

from atoll.server.rounds import MemberStatus, Phase, RoundKey, RoundState, RunState
from atoll.server.runs import pushing
from atoll.server.runs.cohort import SECRET_BITS
from atoll.server.runs.return_spread import LONGEST_DELAY
from atoll.server.sampling import DrawRequest, Eligible, sampler_named
from atoll.server.stores import history
from atoll.server.telemetry.observer import Observer
from atoll.server.telemetry.otel import STEPS
from atoll.server.telemetry.rounds import RoundFigures
from atoll.server.telemetry.run_telemetry import RunTelemetry
from atoll.wire.v1 import participation_pb2
from tests.server.runs.federation import Client, Federation, job, opened, parsed, update_values
from tests.server.runs.private.test_differential_privacy import private_job

pytestmark = pytest.mark.slow

NAMES = ("alice", "bob", "carol", "dave", "erin", "frank")
VICTIM = f"p{'carol':a<12}"
RATE, ROUNDS = 0.5, 4
LEARNED = "learned = { min_s = 1.0, initial_s = 100.0 }"
NOON = 1_800_000_000.0


def seeds() -> Iterator[tuple[int, int]]:
    """Pairs of seeds whose draws in round 0, from all participants, differ only in the victim, drawn with the first."""
    everyone = tuple(Eligible(f"p{name:a<12}", 10) for name in NAMES)
    with_victim: dict[frozenset[str], list[int]] = {}
    without: dict[frozenset[str], list[int]] = {}
    for seed in itertools.count():
        request = DrawRequest(everyone, 3, seed, 0, rate=RATE)
        drawn = frozenset(who for who, _ in sampler_named("poisson").draw(request).members)
        (with_victim if VICTIM in drawn else without).setdefault(drawn - {VICTIM}, []).append(seed)
        others = drawn - {VICTIM}
        if others and with_victim.get(others) and without.get(others):
            yield with_victim[others].pop(), without[others].pop()


@dataclass
class Seen:
    """Everything visible outside the private runs of one play."""

    drawn: list[bool] = field(default_factory=list)
    rounds: list[RoundState] = field(default_factory=list)
    messages: dict[str, list[bytes]] = field(default_factory=dict)
    histories: list[object] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    metrics: list[Sample] = field(default_factory=list)
    steps: list[tuple[str, str, RoundKey | None, str]] = field(default_factory=list)


class Steps(Observer):
    """The steps of runs that would be traced."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, RoundKey | None, str]] = []

    def working(self, run: str, step: str, key: RoundKey | None, what: str) -> contextlib.AbstractContextManager[None]:
        if step in STEPS:
            self.found.append((run, step, key, what))
        return contextlib.nullcontext()


class Server:
    """One play of a federation, with a clock that the test sets."""

    def __init__(self, federation: Federation, clients: list[Client], now: list[float]) -> None:
        self.federation, self.clients, self.now = federation, clients, now
        self.seen = Seen(messages={client.name: [] for client in clients})
        self.private: set[str] = set()
        for client in clients:
            assert client.session is not None
            client.session.counted_from = now[0]

    async def open_round(self, run: str) -> RoundState:
        """The open round of a run, after its members have read their instructions."""
        live = (await self.federation.state(run, is_open)).round
        assert live is not None
        self.read()
        return live

    def read(self) -> None:
        """Read every waiting instruction; the remaining seconds come from a clock that the test does not control."""
        for client in self.clients:
            while client.pending:
                message = parsed(client.waiting())
                message.participate.remaining_s = 0.0
                if client.name != VICTIM or _run_of(message) not in self.private:
                    self.seen.messages[client.name].append(message.SerializeToString(deterministic=True))

    async def report_all(self, live: RoundState, run: str, started: float) -> None:
        """Each member reports, the later the further down the list; the victim takes longest of all."""
        for place, client in enumerate(self.clients):
            member = live.roster.get(client.name)
            if member is not None and member.status is MemberStatus.INVITED:
                self.now[0] = started + (500.0 if client.name == VICTIM else 10.0 + place)
                key = participation_pb2.RoundKey(run=run, round=live.key.round, attempt=live.key.attempt)
                await client.report(key, update_values(place))

    async def play(self, other_toml: bytes) -> None:
        """Private and other runs in turn; each other run is submitted while a private round is open."""
        for number in range(ROUNDS):
            started = self.now[0] = NOON + 10_000.0 * number
            private = await self.federation.submit(
                private_job(cohort=f'sampler = "poisson"\nrate = {RATE}\nmin_available = {len(NAMES)}')
            )
            self.private.add(private)
            live = await self.open_round(private)
            self.seen.drawn.append(live.roster.get(VICTIM) is not None)
            other = await self.federation.submit(other_toml)
            await self.federation.state(other, lambda _, other=other: bool(self.trouble(other)))  # type: ignore[misc]
            await self.report_all(live, private, started)
            self.now[0] = started + 2_000.0
            await self.federation.deadline(private)
            await self.federation.ended(private)
            live = await self.open_round(other)
            self.seen.rounds.append(live)
            await self.report_all(live, other, started + 2_000.0)
            await self.federation.ended(other)
            self.read()
        known = await self.federation.store.reader.run(history.of, [client.name for client in self.clients])
        self.seen.histories = [known[name] for name in sorted(known)]

    def trouble(self, run: str) -> str:
        return self.federation.active(run).performer.trouble


def is_open(state: RunState) -> bool:
    return state.round is not None and state.round.phase is Phase.OPEN


def _run_of(message: participation_pb2.CheckInResponse) -> str:
    kind = message.WhichOneof("message")
    return "" if kind is None else getattr(message, kind).key.run


@pytest.mark.parametrize("rate", ["1e-9", "1.0"])
async def test_the_deadline_after_a_restart_does_not_depend_on_who_was_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: str
) -> None:
    """Members get time to come back, in proportion to their number; the planned number counts, as in invitations."""
    monkeypatch.setattr(pushing, "return_spread_s", lambda count: 1000.0 * count)
    toml = private_job(size=3, cohort=f'sampler = "poisson"\nrate = {rate}\nmin_available = 2')
    async with opened(tmp_path) as federation:
        await federation.clients("alice", "bob")
        live = (await federation.state(await federation.submit(toml), is_open)).round
        assert live is not None
        assert len(live.roster) == (2 if rate == "1.0" else 0)
    async with opened(tmp_path) as federation:
        (active,) = federation.coordinator.in_work()
        await federation.state(active.driver.run, is_open)
        deadline = active.performer.members._deadline
        assert deadline is not None
        assert deadline[1] - asyncio.get_running_loop().time() == pytest.approx(
            LONGEST_DELAY * 3000.0 + pushing.RETURN_S, abs=500.0
        )


async def played(data: Path, other: bytes, own: list[int], monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Return what is visible if the private runs draw with these seeds."""
    now, numbers, figures, steps = [NOON], itertools.count(), RoundFigures(), Steps()
    coming = iter(own)
    open_seeds = random.Random(5)
    with monkeypatch.context() as patch:
        patch.setattr("atoll.server.runs.submission.new_run_id", lambda: f"r{next(numbers):012}")
        patch.setattr(
            "atoll.server.runs.cohort.secrets.randbits",
            lambda bits: next(coming) if bits == SECRET_BITS else open_seeds.getrandbits(bits),
        )
        async with opened(data, clock=lambda: now[0], observer=RunTelemetry(figures, steps)) as federation:
            server = Server(federation, await federation.clients(*NAMES), now)
            await server.play(other)
    samples = [sample for family in figures.registry.collect() for sample in family.samples]
    server.seen.metrics = [sample for sample in samples if not sample.name.endswith("_created")]
    server.seen.steps = sorted(steps.found, key=str)
    return server.seen


@pytest.mark.parametrize(
    "sampler",
    ["least_recent", *(pytest.param(name, marks=pytest.mark.every_case) for name in ("availability", "weighted"))],
)
async def test_what_is_visible_outside_a_private_run_does_not_depend_on_its_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sampler: str
) -> None:
    other = job(size=2, straggler=LEARNED).replace(b"report_window_s = 300.0\n", b"")
    other = other.replace(b"[straggler]", f'sampler = "{sampler}"\nmin_available = 6\n[straggler]'.encode())
    pairs = list(itertools.islice(seeds(), ROUNDS))
    plays = []
    for place in (0, 1):
        caplog.clear()
        with caplog.at_level(logging.INFO, "atoll.server"):
            seen = await played(tmp_path / str(place), other, [pair[place] for pair in pairs], monkeypatch)
        seen.log = [f"{one.name} {one.levelname} {one.getMessage()}" for one in caplog.records]
        plays.append(seen)
    drawn, left_out = plays
    assert (set(drawn.drawn), set(left_out.drawn)) == ({True}, {False})
    for of_drawn, of_left_out in zip(drawn.rounds, left_out.rounds, strict=True):
        assert of_drawn == of_left_out  # who is in it, its window and its deadline
    assert drawn.histories == left_out.histories
    assert drawn.messages == left_out.messages
    assert drawn.metrics == left_out.metrics
    assert drawn.steps == left_out.steps
    assert {step for _, step, _, _ in drawn.steps} == STEPS
    assert sorted(drawn.log) == sorted(left_out.log)
