"""Every combination without a valid account is refused, with the reason and the remedy.

Valid are: Poisson sampling (Mironov, Talwar, Zhang 2019), bounded participation (Choquette-Choo et al. 2023,
"(k, b)-participation"), a sum over a fixed denominator (McMahan et al. 2018, Section 2).
"""

import pytest

from atoll.server.jobs import JobFileError, parse_job
from atoll.server.jobs.convert import to_run_policy
from atoll.server.rounds import Patience
from tests.server.privacy.jobs import COHORTS, NOISE, job, job_text

CLIP = f"{NOISE}\nclip = 1.0"
CAPPED = f"{CLIP}\nmax_participations = 5"
TREE = f'{CAPPED}\nmechanism = "tree"\nmin_separation = 20'
BLT = f'{CAPPED}\nmechanism = "blt"\nmin_separation = 20'
BANDED = f'{CAPPED}\nmechanism = "banded"\nmin_separation = 20'
UNIFORM = '[aggregation]\nweighting = "uniform"\n'


def problems_of(text: str) -> dict[str, str]:
    with pytest.raises(JobFileError) as caught:
        parse_job(text)
    return {problem.key: problem.message for problem in caught.value.problems}


VALID = [
    ("poisson", CLIP),
    *((sampler, CAPPED) for sampler in ("uniform", "weighted", "least_recent", "availability")),
    *((sampler, TREE) for sampler in COHORTS),
    *((sampler, BANDED) for sampler in COHORTS),
    *((sampler, BLT) for sampler in COHORTS),
    ("availability", f"{BLT}\nbuffers = 5"),
]


@pytest.mark.parametrize(("cohort", "privacy"), VALID)
@pytest.mark.parametrize("rest", [UNIFORM, "[aggregation]\nmax_weight = 50\n"])
def test_what_has_an_account_is_accepted(cohort: str, privacy: str, rest: str) -> None:
    assert job(cohort, privacy, rest).privacy is not None


@pytest.mark.parametrize(
    ("cohort", "privacy", "rest", "key", "words"),
    [
        # Poisson sampling: a rate that does not depend on who is connected.
        ('size = 100\nsampler = "poisson"', CLIP, UNIFORM, "cohort.rate", "another rate in every round"),
        (COHORTS["poisson"] + "\nquorum = 3", CLIP, UNIFORM, "cohort.quorum", "set it to 0"),
        (COHORTS["poisson"] + "\nseed = 3", CLIP, UNIFORM, "cohort.seed", "could repeat the draw"),
        ("poisson", CLIP, f"{UNIFORM}[straggler]\nlearned = {{}}", "straggler.learned", "who was drawn"),
        ("poisson", CAPPED, UNIFORM, "privacy.max_participations", "has no effect"),
        ("poisson", CLIP + "\nmin_separation = 2", UNIFORM, "privacy.min_separation", "has no effect"),
        # No draw that is counted on.
        *(
            (sampler, CLIP, UNIFORM, "privacy.max_participations", 'cohort.sampler "poisson" with a rate')
            for sampler in ("uniform", "weighted", "least_recent", "availability")
        ),
        ("availability", f'{CAPPED}\nmechanism = "tree"', UNIFORM, "privacy.min_separation", "is needed by"),
        (
            "availability",
            BANDED.replace("max_participations = 5\n", ""),
            UNIFORM,
            "privacy.max_participations",
            "is needed by",
        ),
        ("availability", f"{BANDED}\nbands = 21", UNIFORM, "privacy.bands", "allowed are 1 to 20"),
        ("availability", f"{BANDED}\nbuffers = 2", UNIFORM, "privacy.buffers", "has no effect"),
        ("availability", f"{TREE}\nbands = 2", UNIFORM, "privacy.bands", "has no effect"),
        ("availability", TREE, f"{UNIFORM}fragments = 2", "aggregation.fragments", "cannot cancel in another"),
        (
            "availability",
            TREE.replace("clip = 1.0", "adaptive = { initial = 1.0 }"),
            UNIFORM,
            "privacy.adaptive",
            'mechanism "gaussian"',
        ),
        ("availability", f"{CAPPED}\nreport_noise = 10", UNIFORM, "privacy.report_noise", "cohort.quorum"),
        # For any sampler.
        ("poisson", CLIP, "", "aggregation.max_weight", "max_weight times the clip norm"),
        ("poisson", CLIP, f'{UNIFORM}[straggler]\nlate = "carry"', "straggler.late", 'allowed is "drop"'),
        ("poisson", CLIP, f"{UNIFORM}[evaluation]\nbefore_training = true", "evaluation.before_training", "metrics"),
        ("poisson", CLIP, f"{UNIFORM}[evaluation]\nfinal = true", "evaluation.final", "metrics"),
        ("poisson", CLIP, f"{UNIFORM}[evaluation]\nevery = 5", "evaluation.every", "set it to 0"),
        (
            "poisson",
            "delta = 1e-6\nclip = 1.0",
            UNIFORM,
            "privacy.epsilon",
            "exactly one of epsilon and",
        ),
        (
            "poisson",
            f"{CLIP}\nepsilon = 3.0",
            UNIFORM,
            "privacy.epsilon",
            "exactly one of epsilon and",
        ),
        ("poisson", NOISE, UNIFORM, "privacy.clip", "exactly one of clip and adaptive"),
        ("poisson", "noise_multiplier = 1.0\ndelta = 0.01\nclip = 1.0", UNIFORM, "privacy.delta", "below 0.01"),
        ("poisson", "noise_multiplier = nan\ndelta = 1e-6\nclip = 1.0", UNIFORM, "privacy.noise_multiplier", "number"),
        ("poisson", f"{NOISE}\nclip = nan", UNIFORM, "privacy.clip", "number"),
        (
            "poisson",
            f"{NOISE}\nadaptive = {{ initial = 1.0, count_noise = 0.5 }}",
            UNIFORM,
            "privacy.adaptive.count_noise",
            "allowed is above 0.5",
        ),
    ],
)
def test_what_has_none_is_refused(cohort: str, privacy: str, rest: str, key: str, words: str) -> None:
    found = problems_of(job_text(cohort, privacy, rest))
    assert words in found[key]
    assert list(found) == [key]


def test_a_private_job_needs_only_what_is_a_choice() -> None:
    spec = job()
    assert spec.cohort.quorum == 0
    evaluation = spec.evaluation
    assert (evaluation.before_training, evaluation.final, evaluation.every) == (False, False, 0)
    assert job("availability", CAPPED).cohort.quorum == 67


def test_a_round_of_a_secret_draw_lasts_until_its_deadline_for_any_members() -> None:
    straggler = to_run_policy(job()).straggler
    assert (straggler.patience, straggler.quorum) == (Patience.DEADLINE, 0)


@pytest.mark.parametrize("cohort", ["uniform", "least_recent"])
def test_where_nothing_is_counted_on_the_draw_a_round_ends_as_any_other(cohort: str) -> None:
    straggler = to_run_policy(job(cohort, CAPPED)).straggler
    assert (straggler.patience, straggler.refused_count) == (Patience.GOAL, True)


def test_without_privacy_a_quorum_of_none_is_for_poisson_sampling_alone() -> None:
    text = job_text("uniform").replace('[privacy]\npopulation = "wards"\n' + CLIP, "")
    assert "quorum" not in text
    assert parse_job(text).cohort.quorum == 67
    assert "poisson" in problems_of(text.replace("size = 100", "size = 100\nquorum = 0"))["cohort.quorum"]


@pytest.mark.parametrize(
    ("cohort", "privacy", "words"),
    [("poisson", CLIP, "tells who was drawn"), ("uniform", CAPPED, "which no account covers")],
)
def test_private_runs_require_no_participant(cohort: str, privacy: str, words: str) -> None:
    text = job_text(cohort, privacy).replace("size = 100", 'size = 100\nrequired = "all"')
    assert words in problems_of(text)["cohort.required"]
