"""The engine under thousands of random schedules: `invariants` checks every step, these tests check the totals.

There are 12,500 with ``--every-schedule``; without it 700, plus schedules that reach rarely used entries of the
table. With the option each of 12 policies crashes at every point; without it at every eighth, each policy starting one
point later than its predecessor.
"""

from collections import Counter
from itertools import product

import pytest

from atoll.server.rounds import (
    IGNORED,
    TABLE,
    Event,
    LateMode,
    LatePolicy,
    Patience,
    RunPolicy,
    RunState,
    RunStatus,
    Situation,
    Step,
    StragglerPolicy,
    replay,
    situation,
)
from atoll.server.rounds.engine import row_of
from tests.server.rounds.json_mapping import EVENTS, STATES
from tests.server.rounds.schedules import play, play_policy
from tests.server.rounds.simulation import CALM, World

pytestmark = pytest.mark.slow

EVERY, FEW = range(12_500), range(700)
RARE = {
    801: "a member declines in an open round, the next round begins",
    1_309: "a member declines in an open round, the run pauses",
    1_445: "an upload is rejected in an open round, the run pauses",
    1_490: "the sum of an aggregated round is lost and made again",
    1_613: "an event that is ignored",
    1_780: "the report that ends an open round, the run pauses",
    3_123: "a member fails in an open round, the run pauses",
    6_071: "a sampled round is rejected, the run pauses",
    9_086: "the report that ends an open round, the next round begins",
}
"""Seeds, and what they alone among the few do. When an entry is missing, ``--every-schedule`` has a seed for it."""
EXTENSIONS: tuple[tuple[int, ...], ...] = ((), (2,))
CRASHED = tuple(product(Patience, LateMode, EXTENSIONS))
STRIDE = 8
"""Each policy crashes at one point of so many, and begins at another one than the policy before it."""


class Played:
    """Totals of all schedules; ``first`` has the seed that first made each move of the table."""

    def __init__(self) -> None:
        self.ends: Counter[RunStatus] = Counter()
        self.crashes = 0
        self.carried = 0
        self.first: dict[tuple[Situation, type, Situation], int] = {}
        self._seed = 0

    def play(self, seed: int) -> None:
        self._seed = seed
        world = play(seed, extra=self._note)
        self.ends[world.state.status] += 1
        self.crashes += world.restarts
        self.carried += sum(len(rnd.carried) for rnd in world.durable.rounds.values())

    def _note(self, _world: World, before: RunState, event: Event, result: Step) -> None:
        row = row_of(before, event, situation(before))
        self.first.setdefault((row, type(event), situation(result.state)), self._seed)


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Played:
    all_of_them = Played()
    for seed in EVERY if request.config.getoption("every_schedule") else (*FEW, *RARE):
        all_of_them.play(seed)
    return all_of_them


def test_random_schedules_hold_the_invariants_and_all_runs_end(played: Played) -> None:
    schedules = sum(played.ends.values())
    assert schedules >= len(FEW)
    assert all(played.ends[end] > schedules / 50 for end in (RunStatus.FINISHED, RunStatus.FAILED, RunStatus.CANCELLED))
    assert played.crashes > schedules  # the schedules do crash,
    assert played.carried > schedules / 10  # and carry


def test_the_schedules_take_every_move_to_each_situation_that_it_lists_and_every_ignored_event(played: Played) -> None:
    rows = {(row, event) for row, event, _ in played.first}
    ignored = {(row, event) for row, events in IGNORED.items() for event in events}
    assert rows == TABLE.keys() | ignored
    listed = {(row, event, to) for (row, event), move in TABLE.items() for to in move.to}
    assert listed <= played.first.keys(), "--every-schedule prints the seed of a missing entry: add it to RARE"


def test_no_seed_is_called_rare_for_what_others_do(played: Played) -> None:
    listed = {(row, event, to) for (row, event), move in TABLE.items() for to in move.to}
    ignored = {(row, event) for row, events in IGNORED.items() for event in events}
    first: dict[tuple[Situation, type], int] = {}
    for (row, event, _), seed in played.first.items():
        first[row, event] = min(seed, first.get((row, event), seed))
    needed = {seed for move, seed in played.first.items() if move in listed} | {first[one] for one in ignored}
    assert needed - set(FEW) == set(RARE)


@pytest.mark.parametrize(("patience", "mode", "extensions"), CRASHED)
def test_a_crash_at_any_point_leaves_the_same_final_model(
    patience: Patience, mode: LateMode, extensions: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    """One crash between any two of step, persist and each effect."""
    quorum = 2 if patience is Patience.GOAL else 0
    straggler = StragglerPolicy(3, patience=patience, quorum=quorum, late=LatePolicy(mode))
    policy = RunPolicy(3, straggler, evaluate_every=2, final_evaluation=True)
    undisturbed = play_policy(1, policy, 5, CALM, extensions=extensions)
    assert undisturbed.state.version == 3 + sum(extensions)
    assert undisturbed.crash_points > 60
    every = request.config.getoption("every_schedule")
    first, stride = (1, 1) if every else (1 + CRASHED.index((patience, mode, extensions)) % STRIDE, STRIDE)
    for at in range(first, undisturbed.crash_points + 1, stride):
        world = play_policy(1, policy, 5, CALM, crash_at=at, extensions=extensions)
        assert world.restarts == 1
        assert world.state.model == undisturbed.state.model
        assert world.durable.published == undisturbed.durable.published


@pytest.mark.parametrize("seed", range(50))
def test_the_log_replays_to_the_same_state_through_json_too(seed: int) -> None:
    world = play(seed)
    assert replay(world.start, world.durable.log) == world.state
    written = [(EVENTS.dump_json(event), now) for event, now in world.durable.log]
    read = [(EVENTS.validate_json(event), now) for event, now in written]
    assert replay(world.start, read) == world.state
    half = replay(world.start, read[: len(read) // 2])
    assert STATES.validate_json(STATES.dump_json(half)) == half
    assert STATES.validate_json(STATES.dump_json(world.state)) == world.state


def test_a_seed_gives_the_same_schedule_twice() -> None:
    assert play(7).durable == play(7).durable
