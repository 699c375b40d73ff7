from atoll.server.jobs import parse_job, to_run_policy
from atoll.server.jobs.reference import MINIMAL, TYPICAL
from atoll.server.rounds import LateMode, Weighting


def test_a_job_becomes_the_engines_rules() -> None:
    policy = to_run_policy(parse_job(TYPICAL))
    assert (policy.rounds, policy.evaluate_every, policy.final_evaluation) == (200, 10, True)
    assert (policy.weighting, policy.max_weight, policy.max_abs) == (Weighting.EXAMPLES, 5000, 32.0)
    straggler = policy.straggler
    assert (straggler.cohort_size, straggler.over_selection, straggler.quorum) == (50, 1.3, 30)
    assert (straggler.late.mode, straggler.late.max_staleness, straggler.late.exponent) == (LateMode.CARRY, 3, 0.5)
    assert not straggler.wait_for_all


def test_poisson_waits_for_all() -> None:
    assert to_run_policy(parse_job(MINIMAL + 'sampler = "poisson"\nquorum = 0\n')).straggler.wait_for_all


def test_dropped_reports_are_carried_for_no_round() -> None:
    late = to_run_policy(parse_job(MINIMAL)).straggler.late
    assert (late.mode, late.max_staleness) == (LateMode.DROP, 0)
