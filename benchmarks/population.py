"""The cost of a large population on the server's event loop and memory, compared with recomputing for each change.

In one process, without connections: the parts of the server that iterate over all members or all connections.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atoll.server.identity import DEFAULT_PROJECT
from atoll.server.jobs import parse_job, to_run_policy
from atoll.server.rounds import (
    Accepted,
    CohortDrawn,
    RoundGrid,
    RoundKey,
    RoundPrepared,
    RoundState,
    RunState,
    Started,
    initial,
    step,
)
from atoll.server.rpc.views import RoundNumbering
from atoll.server.rpc.watching import LiveRound, ShownMembers
from atoll.server.runs.instructions import Invitation
from atoll.server.runs.invitations import Invitations
from atoll.server.runs.run_privacy import RunPrivacy
from atoll.server.runs.session import Introduction, Session
from atoll.server.runs.sessions import Changes, Sessions
from atoll.server.runs.standings import Standing, Standings
from atoll.server.stores import DirectoryBlobStore
from atoll.wire.encoding import Encoding
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.messages import layout_to_proto
from benchmarks.figures import Figure
from benchmarks.options import Options

POPULATION = 10_000
TENSORS = 1_000
MANY_TENSORS = 20_000
REPEATS = 20
MB, MS = 1e6, 1e3
KEY = RoundKey(0, 0)
GRID = RoundGrid(fraction_bits=20, max_abs=32.0, weight_shift=2, weight_total_bits=24)
HELLO = Introduction(10, frozenset(Encoding), can_evaluate=True)
JOB = """
[job]
name = "population"
rounds = 4

[model]
initial = "initial.safetensors"

[cohort]
size = {size}
quorum = {size}

[straggler]
report_window_s = 60.0
"""


def run(options: Options) -> list[Figure]:
    """Memory and time for a population of ``--clients``."""
    count, command = options.or_else(options.clients, POPULATION, 50), options.command("population")
    tensors, many = (10, 20) if options.smoke else (TENSORS, MANY_TENSORS)
    round_ = OpenRound.of(count)
    held, copied = _held(round_, tensors)
    again, anew = _invited_again(round_, many)
    changed, looked = asyncio.run(_waiting(count))
    shown, whole = _watched(round_)
    what = f"{count:,}"
    return [
        Figure.stated(f"{what} invitations, {tensors:,} tensors: held", held / MB, "MB", command, beside=copied / MB),
        Figure.stated(f"one invitation after a reconnect, {many:,} tensors", again, "ms", command, beside=anew),
        Figure.stated(
            f"a run that waits, {what} connected: one reply to another run", changed, "ms", command, beside=looked
        ),
        Figure.stated(f"a watcher, {what} members: one that changed", shown, "ms", command, beside=whole),
    ]


@dataclass(frozen=True)
class OpenRound:
    """A run in the middle of a round."""

    state: RunState
    live: RoundState
    job: str

    @classmethod
    def of(cls, members: int) -> OpenRound:
        """A round of this many members, none of which has answered yet."""
        job = JOB.format(size=members)
        names = tuple((f"p{number:012}", 10) for number in range(members))
        state = step(initial("r", to_run_policy(parse_job(job)), "m" * 64), Started(), 0.0).state
        state = step(state, CohortDrawn(KEY, names, members, "uniform", 0), 0.0).state
        state = step(state, RoundPrepared(KEY, 60.0, 60.0, GRID), 0.0).state
        return cls.at(state, job)

    @classmethod
    def at(cls, state: RunState, job: str) -> OpenRound:
        """The round of a state with a round."""
        if state.round is None:
            raise ValueError("the run has no round")
        return cls(state, state.round, job)


def _layout(tensors: int) -> Layout:
    specs = (
        TensorSpec(f"model.layers.{number}.attention.weight", (64, 64), Dtype.FLOAT32) for number in range(tensors)
    )
    return Layout(tuple(specs))


def _invite_all(at: OpenRound, invitations: Invitations) -> list[Invitation]:
    return [
        invitations.for_member(at.state, at.live, member, remaining_s=60.0, traceparent="") for member in at.live.roster
    ]


def _invitations(at: OpenRound, layout: Layout, folder: str) -> Invitations:
    message = layout_to_proto(layout).SerializeToString()
    return Invitations("r", parse_job(at.job), layout, message, DirectoryBlobStore(Path(folder)), RunPrivacy())


def _held(at: OpenRound, tensors: int) -> tuple[float, float]:
    """Bytes of the pending invitations, as held and as whole messages."""
    with tempfile.TemporaryDirectory() as folder:
        made = _invite_all(at, _invitations(at, _layout(tensors), folder))
    shared = {id(one.shared): len(one.shared) for one in made}
    return sum(shared.values()) + sum(len(one.own) for one in made), sum(len(one.serialised()) for one in made)


def _invited_again(at: OpenRound, tensors: int) -> tuple[float, float]:
    """Milliseconds to invite one member of an open round, and to serialise its layout."""
    layout, member = _layout(tensors), next(iter(at.live.roster))
    with tempfile.TemporaryDirectory() as folder:
        invitations = _invitations(at, layout, folder)
        invitations.for_member(at.state, at.live, member, remaining_s=60.0, traceparent="")
        again = _median_ms(
            lambda: invitations.for_member(at.state, at.live, member, remaining_s=1.0, traceparent="").serialised()
        )
    return again, _median_ms(lambda: layout_to_proto(layout).SerializeToString(), 3)


async def _waiting(count: int) -> tuple[float, float]:
    """Milliseconds for a waiting run to evaluate one change, and to evaluate all participants."""
    sessions = Sessions()
    for number in range(count):
        sessions.connect(f"p{number:012}", HELLO, lambda: None)
    there = sessions.of(DEFAULT_PROJECT)
    with sessions.watch() as changes:
        standings = Standings(there, changes, lambda _: (), _judged)
        standings.count()

        def one() -> None:
            sessions.touch(("p000000000000",))
            standings.count()

        changed = _median_ms(one)
    return changed, _median_ms(lambda: Standings(there, Changes(), lambda _: (), _judged).count())


def _judged(session: Session, taken: object) -> Standing:
    del taken
    return Standing(free=session.introduction.examples > 0, idle=True, unfit=False, resting=False)


def _watched(at: OpenRound) -> tuple[float, float]:
    """Milliseconds to build a watcher's view of one member, and of all of them."""
    shown = ShownMembers()
    states = [at.state]
    for number in range(REPEATS):
        states.append(step(states[-1], Accepted(KEY, f"p{number:012}"), 0.0).state)
    rounds = [OpenRound.at(state, at.job) for state in states]
    seen = iter([LiveRound(one.state, one.live, {}, RoundNumbering(), 1.0) for one in rounds])
    list(shown.pages(next(seen)))
    changed = _median_ms(lambda: list(shown.pages(next(seen))))
    whole = LiveRound(at.state, at.live, {}, RoundNumbering(), 1.0)
    return changed, _median_ms(lambda: whole.summary(members=True), 3)


def _median_ms(work: Callable[[], object], repeats: int = REPEATS) -> float:
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return MS * statistics.median(taken)
