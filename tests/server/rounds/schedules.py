"""Random policies and runs, each reproducible from its seed."""

from random import Random

from atoll.server.rounds import LateMode, LatePolicy, Patience, RunPolicy, StragglerPolicy, Weighting
from tests.server.rounds.invariants import Invariants, check_end
from tests.server.rounds.simulation import Check, Faults, World


def random_policy(rng: Random) -> RunPolicy:
    cohort = rng.randint(1, 4)
    patience = rng.choices(list(Patience), (8, 2, 1))[0]
    late = LatePolicy(rng.choice((*LateMode, LateMode.CARRY)), rng.randint(0, 2), rng.choice((0.0, 0.5, 1.0)))
    straggler = StragglerPolicy(
        cohort_size=cohort,
        over_selection=rng.choice((1.0, 1.3, 2.0)),
        patience=patience,
        quorum=rng.randint(1 if patience is Patience.GOAL else 0, cohort),
        refused_count=rng.random() < 0.15,
        late=late,
        max_attempts=rng.randint(1, 3),
        retry_delay_s=1.0,
    )
    return RunPolicy(
        rounds=rng.randint(1, 4),
        straggler=straggler,
        evaluate_every=rng.randint(0, 2),
        final_evaluation=rng.random() < 0.5,
        weighting=rng.choice(list(Weighting)),
        max_weight=rng.choice((5, 1000)),
    )


def play(seed: int, extra: Check | None = None) -> World:
    """One random schedule, checked after every step and at its end."""
    rng = Random(seed)
    policy = random_policy(rng)
    population = 2 * policy.straggler.cohort_size + rng.randint(0, 2)
    ticks, later = rng.randint(20, 250), Random(f"{seed}: extensions")
    extensions = tuple(later.randint(1, 2) for _ in range(later.choice((0, 0, 1, 2))))
    return play_policy(seed, policy, population, Faults(), ticks, extra=extra, extensions=extensions)


def play_policy(
    seed: int,
    policy: RunPolicy,
    population: int,
    faults: Faults,
    fault_ticks: int = 0,
    crash_at: int | None = None,
    extra: Check | None = None,
    extensions: tuple[int, ...] = (),
) -> World:
    """One schedule of a given policy: faults for this many ticks, then calm until the end.

    A run that finishes or is cancelled is extended by this many rounds each time.
    """
    checked = Invariants()
    checks = [checked.check, *([extra] if extra else [])]
    world = World(seed, policy, population, faults, checks, crash_at, extensions)
    world.run(fault_ticks, limit=2000)
    check_end(world, checked)
    return world
