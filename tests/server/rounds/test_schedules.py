"""The engine under ten thousand random schedules: `invariants` checks every step, here is what they add up to."""

from collections import Counter

import pytest

from atoll.server.rounds import (
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

SCHEDULES = 12_500


class Played:
    """What all schedules together did."""

    def __init__(self) -> None:
        self.ends: Counter[RunStatus] = Counter()
        self.moves: Counter[tuple[Situation, type, Situation]] = Counter()
        self.crashes = 0
        self.carried = 0

    def note(self, _world: World, before: RunState, event: Event, result: Step) -> None:
        row = row_of(before, event, situation(before))
        self.moves[row, type(event), situation(result.state)] += 1


@pytest.fixture(scope="module")
def played() -> Played:
    all_of_them = Played()
    for seed in range(SCHEDULES):
        world = play(seed, extra=all_of_them.note)
        all_of_them.ends[world.state.status] += 1
        all_of_them.crashes += world.restarts
        all_of_them.carried += sum(len(rnd.carried) for rnd in world.durable.rounds.values())
    return all_of_them


def test_ten_thousand_schedules_hold_the_invariants_and_all_runs_end(played: Played) -> None:
    assert sum(played.ends.values()) == SCHEDULES
    assert all(played.ends[end] > SCHEDULES / 50 for end in (RunStatus.FINISHED, RunStatus.FAILED, RunStatus.CANCELLED))
    assert played.crashes > SCHEDULES  # the schedules do crash,
    assert played.carried > SCHEDULES / 10  # and carry


def test_the_schedules_take_every_entry_of_the_table_to_every_situation_that_it_lists(played: Played) -> None:
    rows = {(row, event) for row, event, _ in played.moves}
    assert rows == TABLE.keys()
    listed = {(row, event, to) for (row, event), move in TABLE.items() for to in move.to}
    assert listed <= played.moves.keys()


@pytest.mark.parametrize("mode", LateMode)
@pytest.mark.parametrize("patience", Patience)
def test_a_crash_at_any_point_leaves_the_same_final_model(mode: LateMode, patience: Patience) -> None:
    """One crash between any two of step, persist and each effect, for every point of the run."""
    quorum = 2 if patience is Patience.GOAL else 0
    straggler = StragglerPolicy(3, patience=patience, quorum=quorum, late=LatePolicy(mode))
    policy = RunPolicy(3, straggler, evaluate_every=2, final_evaluation=True)
    undisturbed = play_policy(1, policy, 5, CALM)
    assert undisturbed.crash_points > 60
    for at in range(1, undisturbed.crash_points + 1):
        world = play_policy(1, policy, 5, CALM, crash_at=at)
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
