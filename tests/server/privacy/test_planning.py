"""Plans agree with contracts and the accountant."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from atoll.accounting import convolving
from atoll.server.errors import InvalidRequestError
from atoll.server.privacy.plan_figure import plan_svg, write_plan
from atoll.server.privacy.planning import Plan, plan_of
from tests.server.privacy.jobs import NOISE, TARGET, job

pytestmark = pytest.mark.slow

RDP = "clip = 0.5\naccountant = 'rdp'"


@pytest.fixture(scope="module")
def targeted() -> Plan:
    return plan_of(job("poisson", f"{TARGET}\n{RDP}"), 10_000, wanted=2.0)


def test_epsilon_rises_to_the_target(targeted: Plan) -> None:
    assert [one.rounds for one in targeted.spent] == [1, *range(100, 1001, 100)]
    epsilons = [one.epsilon for one in targeted.spent]
    assert epsilons == sorted(epsilons)
    assert 7.99 < epsilons[-1] <= 8.0
    assert targeted.rounds_within == 1000


def test_noise_is_compared_with_the_most_signal(targeted: Plan) -> None:
    z = targeted.contract.noise_multiplier
    assert targeted.noise_element == pytest.approx(z * 0.5 / 100)
    assert targeted.signal_element == pytest.approx(0.5 / 100)
    assert targeted.noise_norm / targeted.noise_element == pytest.approx(100)
    assert targeted.signal_to_noise == pytest.approx(1 / z)
    assert targeted.population_least == 10_000
    assert targeted.least_s == 1000 * 600.0  # a round of a secret draw lasts until its deadline


def test_alternatives_are_of_the_same_population_and_target(targeted: Plan) -> None:
    assert [one.cohort for one in targeted.cohorts] == [50, 100, 200, 400, 1000]
    assert [one.sample_rate for one in targeted.cohorts] == pytest.approx([0.005, 0.01, 0.02, 0.04, 0.1])
    ratios = [one.signal_to_noise or 0.0 for one in targeted.cohorts]
    assert ratios == sorted(ratios)
    assert targeted.cohorts[1].noise_multiplier == targeted.contract.noise_multiplier
    by_rounds = [one.noise_multiplier or 0.0 for one in targeted.durations]
    assert by_rounds == sorted(by_rounds)


def test_the_cohort_that_is_found_is_about_the_smallest(targeted: Plan) -> None:
    best = targeted.cohort_wanted
    assert best is not None
    assert best.signal_to_noise is not None
    assert 2.0 <= best.signal_to_noise < 2.2


def test_given_noise_is_planned_for_the_target_that_is_asked_for() -> None:
    found = plan_of(job("poisson", f"{NOISE}\n{RDP}"), 10_000, target=3.0, wanted=1e6)
    assert found.contract.noise_multiplier == 1.0
    assert found.target == 3.0
    assert found.rounds_within is not None
    assert found.rounds_within > 1000
    last = plan_of(job("poisson", f"{NOISE}\n{RDP}", rounds=found.rounds_within), 10_000, wanted=1e-3).spent[-1]
    assert 2.99 < last.epsilon <= 3.0
    assert found.cohort_wanted is None


def test_capped_participation_needs_people() -> None:
    keys = f'{NOISE}\n{RDP}\nmechanism = "tree"\nmax_participations = 4\nmin_separation = 100'
    found = plan_of(job("availability", keys), 10_000)
    assert found.population_least == 25_000
    assert found.least_s is None
    assert found.rounds_within is None
    assert [one.population_least for one in found.cohorts] == [12_500, 25_000, 50_000, 100_000, 250_000]
    assert [one.population_least for one in found.durations] == [10_000, 12_500, 25_000, 50_000, 100_000]


def test_each_step_is_told_before_it_begins() -> None:
    calls: list[tuple[int, int, str]] = []
    found = plan_of(
        job("poisson", f"{NOISE}\n{RDP}"),
        10_000,
        target=3.0,
        progress=lambda done, total, step: calls.append((done, total, step)),
    )
    total = 4 + len(found.cohorts) + len(found.durations)
    assert [(done, of) for done, of, _ in calls] == [(number, total) for number in range(total)]
    steps = [step for *_, step in calls]
    assert steps[:3] == ["the job's noise", "epsilon by round", "how many rounds epsilon 3 lasts"]
    assert steps[3] == f"the noise of a cohort of {found.cohorts[0].cohort}"
    assert steps[-2:] == [
        f"the noise of {found.durations[-1].rounds} rounds",
        "the smallest cohort with signal to noise 1",
    ]


def test_a_plan_of_many_rounds_transforms_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 rounds with a target, by ``prv``: all transforms together have fewer than 2^26 points."""
    points = 0
    logarithm = convolving._log1p

    def counted(values: convolving.Complexes) -> convolving.Complexes:
        nonlocal points
        points += values.size
        return logarithm(values)

    monkeypatch.setattr(convolving, "_log1p", counted)
    found = plan_of(job("poisson", f"{TARGET}\nclip = 0.5", rounds=10_000), 10_000)
    assert found.contract.accountant == "prv"
    assert 0 < points < 2**26


def test_a_job_that_promises_nothing_has_no_plan() -> None:
    with pytest.raises(InvalidRequestError, match=r"no \[privacy\] section"):
        plan_of(job().model_copy(update={"privacy": None}), 10)


def test_the_picture_stands_alone(targeted: Plan, tmp_path: Path) -> None:
    picture = plan_svg(targeted)
    assert "mathdefault" not in picture
    root = ET.fromstring(picture)  # noqa: S314  # our own
    assert root.tag.endswith("svg")
    assert "epsilon 8" in root.attrib["aria-label"]
    write_plan(targeted, tmp_path / "plan.html")
    assert "<!doctype html>" in (tmp_path / "plan.html").read_text(encoding="utf-8")
