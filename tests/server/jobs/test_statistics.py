"""Jobs with [statistics]: keys that follow from the section, and refusals."""

from __future__ import annotations

import pytest

from atoll.server.errors import InvalidRequestError
from atoll.server.jobs import (
    Cohort,
    Job,
    JobFileError,
    Statistics,
    check_statistics_layout,
    parse_job,
    statistics_layout,
    to_run_policy,
)
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.statistics_query import CategoryColumn

HEAD = '[job]\nname = "overview"\n[cohort]\nsize = 4\n'
JOB = HEAD + '[statistics]\nnumeric = ["age"]\ncategories = { sex = ["f", "m"] }\n'


PRIVATE = '[privacy]\npopulation = "wards"\nepsilon = 1.0\ndelta = 1e-6\n'
NOISED = JOB + "bounds = { age = [0.0, 120.0] }\nmax_rows = 200\n" + PRIVATE


@pytest.mark.parametrize(("unit", "clip"), [("participant", 200 * 5**0.5), ("row", 5**0.5)])
def test_the_clip_norm_follows_from_columns_and_rows(unit: str, clip: float) -> None:
    spec = parse_job(NOISED + f'unit = "{unit}"\n')
    assert spec.privacy is not None
    assert (spec.privacy.clip, spec.privacy.mechanism, spec.privacy.max_participations) == (clip, "gaussian", 1)
    assert (spec.job.rounds, spec.aggregation.max_abs, spec.cohort.required) == (1, 512.0, ())
    job = Job.of(spec)
    assert parse_job(job.to_toml()).model_dump() == job.model_dump()


def test_rows_are_a_unit_of_statistics_alone() -> None:
    text = '[job]\nname = "x"\nrounds = 1\n[model]\ninitial = "x.safetensors"\n[cohort]\nsize = 4\n[aggregation]\n'
    text += f'weighting = "uniform"\n{PRIVATE}clip = 1.0\nmax_participations = 1\nunit = "row"\n'
    with pytest.raises(JobFileError, match=r"the noise of a round hides rows only in \[statistics\]"):
        parse_job(text)


def test_rounds_sums_and_quorum_follow_from_the_query() -> None:
    spec = parse_job(JOB)
    assert spec.statistics is not None
    assert spec.statistics.query.categories == (CategoryColumn("sex", ("f", "m")),)
    policy = to_run_policy(spec)
    assert (policy.rounds, policy.straggler.quorum, policy.max_abs) == (4, 4, 2.0**20)
    assert (spec.aggregation.weighting, spec.aggregation.encoding) == ("uniform", "float64")
    assert (spec.cohort.required, policy.final_evaluation, spec.evaluation.before_training) == ("all", False, False)


def test_categories_alone_take_one_round() -> None:
    assert parse_job(HEAD + '[statistics]\ncategories = { sex = ["f"] }\n').job.rounds == 1


def test_a_job_in_python_is_the_file_and_reads_back() -> None:
    job = Job(
        name="overview", cohort=Cohort(size=4), statistics=Statistics(numeric=("age",), categories={"sex": ("f", "m")})
    )
    assert job.model_dump() == Job.of(parse_job(JOB)).model_dump()
    assert parse_job(job.to_toml()).model_dump() == job.model_dump()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (JOB.replace('overview"', 'overview"\nrounds = 7'), "job.rounds"),
        (JOB + '[model]\ninitial = "x.safetensors"\n', "there is no initial model"),
        (JOB + "[optimiser]\nlr = 0.5\n", "no model to train"),
        (JOB + '[stop]\nmetric = "eval/loss"\nmode = "min"\npatience = 3\n', "no model that gets better"),
        (JOB + "[aggregation]\nmax_abs = 8.0\n", "aggregation.max_abs"),
        (JOB + "[evaluation]\nfinal = true\n", "evaluation.final"),
        (JOB.replace("size = 4", 'size = 4\nsampler = "poisson"'), "must count the same participants"),
        (JOB.replace("size = 4", "size = 4\nquorum = 3"), "every one of the 4 participants must answer"),
        (JOB.replace("size = 4", "size = 4\nover_selection = 1.5"), "cohort.over_selection"),
        (JOB.replace("size = 4", "size = 2"), "below statistics.min_participants 3"),
        (JOB.replace('["age"]', '["age", "age"]'), "'age' is there twice"),
        (JOB.replace('["age"]', '["sex"]'), "'sex' is there twice"),
        (
            JOB + "quantiles = [0.5, 1.5]\n",
            "statistics.quantiles = [0.5, 1.5]: 1.5; allowed are numbers above 0 and below 1",
        ),
        (
            HEAD + f"[statistics]\nbins = 1024\nnumeric = {[f'c{n}' for n in range(2000)]}\n",
            "at most 8388608; lower it",
        ),
        (HEAD + "[statistics]\n", "0 columns; allowed are 1 to"),
        (NOISED.split("[privacy]")[0], "statistics.max_rows = 200: has no effect without [privacy]"),
        (JOB + PRIVATE, "statistics.max_rows: is missing: with [privacy] it bounds what one participant sends"),
        (JOB + "max_rows = 200\n" + PRIVATE, "column 'age' lacks its lower and upper bound"),
        (NOISED.replace("120.0", "0.0"), "statistics.bounds.age: 0 to 0; allowed are two numbers, the lower first"),
        (NOISED.replace("age = [0.0", "height = [0.0"), "'height' is not a column in statistics.numeric"),
        (NOISED.replace("max_rows", "refinements = 1\nmax_rows"), "would spend the budget once more"),
        (NOISED.replace("max_rows", "minimum_and_maximum = true\nmax_rows"), "a single row decides"),
        (NOISED.replace("max_rows", "min_rows = 9\nmax_rows"), "noise hides small cells"),
        (NOISED.replace("max_rows", 'by = "sex"\nmax_rows'), "use a separate run for the rows of one label"),
        (JOB + 'by = "ward"\n', "statistics.by = \"ward\": 'ward'; allowed is a column of categories: sex"),
        (NOISED + "clip = 1.0\n", "privacy.clip = 1.0: does not go with [statistics]: it follows"),
        (NOISED + "adaptive = { initial = 1.0 }\n", "privacy.adaptive"),
        (NOISED + 'mechanism = "blt"\n', 'allowed is "gaussian"'),
        (NOISED.replace("size = 4", 'size = 4\nrequired = "all"'), "would decide whether the others count"),
    ],
)
def test_what_does_not_go_with_statistics_is_refused(text: str, problem: str) -> None:
    with pytest.raises(JobFileError) as raised:
        parse_job(text)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ('numeric = [""]', "job.toml:6: statistics.numeric = [\"\"]: column ''; allowed are 1 to 128 printable"),
        ('categories = { "" = ["f"] }', "statistics.categories"),
        ('categories = { sex = ["f", "f"] }', "statistics.categories.sex: level 'f' is there twice"),
        ("categories = { sex = [] }", "statistics.categories.sex: 0 levels"),
        ('numeric = ["a"]\nquantiles = [0.5, 0.5]', "statistics.quantiles = [0.5, 0.5]: 0.5 is there twice"),
        ('numeric = ["a"]\nbins = 1', "statistics.bins = 1: allowed"),
    ],
)
def test_an_error_of_the_section_names_its_key_and_asks_for_no_rounds(section: str, problem: str) -> None:
    with pytest.raises(JobFileError) as raised:
        parse_job(HEAD + f"[statistics]\n{section}\n")
    assert problem in str(raised.value)
    assert "job.rounds" not in str(raised.value)


def test_a_run_begins_with_the_model_of_its_query() -> None:
    spec = parse_job(JOB)
    assert spec.statistics is not None
    check_statistics_layout(spec, statistics_layout(spec.statistics))
    with pytest.raises(InvalidRequestError, match=r"not that of the job's \[statistics\]"):
        check_statistics_layout(spec, Layout((TensorSpec("w", (3,), Dtype.FLOAT64),)))
