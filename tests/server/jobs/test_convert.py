import pytest

from atoll.server.aggregation.optimisers import FedAvgM, FedYogi
from atoll.server.jobs import (
    averaged_tensors,
    expected_window_s,
    optimiser_of,
    parse_job,
    report_window_of,
    to_run_policy,
)
from atoll.server.jobs.reference import MINIMAL, TYPICAL
from atoll.server.rounds import LateMode, Patience, Weighting
from atoll.server.rounds.judging import Criterion, Mode, StopRule
from atoll.server.sampling.report_window import FixedReportWindow, LearnedReportWindow
from atoll.wire.layout import Dtype, Layout, TensorSpec


def test_a_job_becomes_the_engines_rules() -> None:
    policy = to_run_policy(parse_job(TYPICAL))
    assert (policy.rounds, policy.evaluate_every, policy.final_evaluation) == (200, 10, True)
    assert (policy.weighting, policy.max_weight, policy.max_abs) == (Weighting.EXAMPLES, 5000, 32.0)
    straggler = policy.straggler
    assert (straggler.cohort_size, straggler.over_selection, straggler.quorum) == (50, 1.3, 30)
    assert (straggler.late.mode, straggler.late.max_staleness, straggler.late.exponent) == (LateMode.CARRY, 3, 0.5)
    assert straggler.patience is Patience.GOAL


def test_poisson_waits_for_all() -> None:
    assert to_run_policy(parse_job(MINIMAL + 'sampler = "poisson"\nquorum = 0\n')).straggler.patience is Patience.ALL


def test_dropped_reports_are_carried_for_no_round() -> None:
    late = to_run_policy(parse_job(MINIMAL)).straggler.late
    assert (late.mode, late.max_staleness) == (LateMode.DROP, 0)


@pytest.mark.parametrize("name", ["fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi"])
def test_every_optimiser_of_the_reference_exists(name: str) -> None:
    assert optimiser_of(parse_job(f'{MINIMAL}[optimiser]\nname = "{name}"\n')).name == name


def test_optimisers_get_their_parameters() -> None:
    momentum = 'name = "fedavgm"\nlr = 0.7\nmomentum = 0.8\nnesterov = true\n'
    assert optimiser_of(parse_job(f"{MINIMAL}[optimiser]\n{momentum}")) == FedAvgM(0.7, 0.8, nesterov=True)
    yogi = 'name = "fedyogi"\nlr = 0.1\nbeta1 = 0.5\nbeta2 = 0.6\ntau = 0.01\n'
    assert optimiser_of(parse_job(f"{MINIMAL}[optimiser]\n{yogi}")) == FedYogi(0.1, 0.5, 0.6, 0.01)


def test_tensors_that_are_averaged_are_named_or_matched() -> None:
    names = ("conv.weight", "bn.running_mean", "bn.running_var", "head.bias")
    layout = Layout(tuple(TensorSpec(name, (2,), Dtype.FLOAT32) for name in names))
    assert averaged_tensors(parse_job(MINIMAL), layout) == {"bn.running_mean", "bn.running_var"}
    own = parse_job(MINIMAL + '\n[aggregation]\naveraged = ["head.?ias", "conv.*"]\n')
    assert averaged_tensors(own, layout) == {"head.bias", "conv.weight"}
    assert averaged_tensors(parse_job(MINIMAL + "\n[aggregation]\naveraged = []\n"), layout) == frozenset()


def test_the_window_is_fixed_or_learned() -> None:
    assert report_window_of(parse_job(f"{MINIMAL}[straggler]\nreport_window_s = 9\n")) == FixedReportWindow(9.0)
    learned = parse_job(f"{MINIMAL}[straggler.learned]\nquantile = 0.5\nmax_s = 700\n")
    assert report_window_of(learned) == LearnedReportWindow(quantile=0.5, max_s=700.0)
    assert expected_window_s(learned) == 600.0


def test_the_metric_that_stops_a_run_also_decides_which_model_is_best_unless_another_one_is_named() -> None:
    stop = '[stop]\nmetric = "eval/loss"\nmode = "min"\npatience = 3\nmin_delta = 0.5\n'
    rules = to_run_policy(parse_job(MINIMAL + stop))
    assert (rules.best, rules.stop) == (
        Criterion("eval/loss", Mode.MIN),
        StopRule(Criterion("eval/loss", Mode.MIN), 3, 0.5),
    )
    rules = to_run_policy(parse_job(MINIMAL + stop + '[retention]\nbest = "eval/auc"\nmode = "max"\n'))
    assert (rules.best, rules.deciding_metrics) == (
        Criterion("eval/auc", Mode.MAX),
        frozenset({"eval/auc", "eval/loss"}),
    )
    assert (to_run_policy(parse_job(MINIMAL)).best, to_run_policy(parse_job(MINIMAL)).stop) == (None, None)
