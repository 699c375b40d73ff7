import contextlib
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.server.errors import InvalidRequestError
from atoll.server.jobs import MAX_JOB_BYTES, JobFileError, parse_job
from atoll.server.jobs.reference import MINIMAL, PRIVATE, TYPICAL
from atoll.wire.encoding import Encoding


def problems_of(text: str) -> dict[str, str]:
    with pytest.raises(JobFileError) as caught:
        parse_job(text, "bad.toml")
    return {problem.key: problem.describe("bad.toml") for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("name", "encoding"),
    [("bfloat16", Encoding.BFLOAT16), ("int8", Encoding.INT8_BLOCK), ("int4", Encoding.INT4_BLOCK)],
)
def test_encodings_have_plain_names(name: str, encoding: Encoding) -> None:
    assert parse_job(f'{MINIMAL}[aggregation]\nencoding = "{name}"\n').aggregation.wire_encoding is encoding


def test_the_smallest_job_gets_sane_defaults() -> None:
    spec = parse_job(MINIMAL)
    assert (spec.cohort.size, spec.cohort.quorum, spec.cohort.min_available) == (8, 6, 8)
    assert spec.cohort.sampler == "uniform"
    assert spec.straggler.report_window_s == 600
    assert (spec.optimiser.name, spec.optimiser.lr) == ("fedavg", 1.0)
    assert spec.aggregation.wire_encoding is Encoding.FLOAT32
    assert spec.training == {}
    assert spec.evaluation.server is None


def test_a_typical_job_is_read_whole() -> None:
    spec = parse_job(TYPICAL.encode())
    assert spec.cohort.invited == 65
    assert spec.straggler.learned is not None
    assert spec.straggler.learned.max_s == 1800
    assert spec.straggler.carried_rounds == 3
    assert spec.training == {"epochs": 2, "batch_size": 32, "lr": 0.05, "proximal_mu": 0.01}


def test_the_private_job_of_the_reference_is_valid() -> None:
    section = parse_job(PRIVATE).privacy
    assert section is not None
    assert (section.epsilon, section.clip, section.mechanism) == (8.0, 0.5, "gaussian")


def test_defaults_follow_what_they_depend_on() -> None:
    poisson = parse_job(MINIMAL + 'sampler = "poisson"\n')
    assert poisson.cohort.quorum == 1
    adaptive = parse_job(MINIMAL + '[optimiser]\nname = "fedyogi"\n')
    assert adaptive.optimiser.lr == 0.01


def test_a_job_is_frozen() -> None:
    spec = parse_job(TYPICAL)
    with pytest.raises(ValueError, match="frozen"):
        spec.cohort.size = 3
    with pytest.raises(TypeError):
        spec.training["epochs"] = 3  # type: ignore[index]  # the point of the test


def test_every_problem_is_listed_with_line_key_value_and_what_is_allowed() -> None:
    found = problems_of(
        textwrap.dedent("""\
        [job]
        name = "digits"
        rounds = 0

        [model]
        initial = 3

        [cohort]
        sise = 8
        sampler = "unifrom"
        over_selection = "a"
        lr = 3

        [straggler]
        learned = { quantile = 2.0 }

        [optimizer]
        name = "fedadam"

        [secrecy]
        epsilon = 3
        """)
    )
    assert found == {
        "job.rounds": "bad.toml:3: job.rounds = 0: allowed is a whole number from 1 to 1000000",
        "model.initial": "bad.toml:6: model.initial = 3: allowed is the path of a .safetensors file",
        "cohort.size": "bad.toml:8: cohort.size: is missing; needed is a whole number from 1 to 100000",
        "cohort.sise": 'bad.toml:9: cohort.sise = 8: no such key; did you mean "size"?',
        "cohort.sampler": 'bad.toml:10: cohort.sampler = "unifrom": allowed are "uniform", "poisson", "weighted", '
        '"least_recent", "availability"; did you mean "uniform"?',
        "cohort.over_selection": 'bad.toml:11: cohort.over_selection = "a": allowed is a number from 1 to 10',
        "cohort.lr": "bad.toml:12: cohort.lr = 3: no such key; did you mean [optimiser] lr?",
        "straggler.learned.quantile": "bad.toml:15: straggler.learned.quantile = 2.0: allowed is a number above 0 up "
        "to 1",
        "optimizer": 'bad.toml:17: optimizer: no such section; did you mean "optimiser"?',
        "secrecy": "bad.toml:20: secrecy: no such section; allowed are job, model, cohort, straggler, aggregation, "
        "optimiser, training, evaluation, retention, stop, iterate_averaging, privacy, statistics",
    }


def test_missing_sections_say_what_they_need() -> None:
    found = problems_of('[job]\nname = "a"\nrounds = 1\n')
    assert found["cohort"] == "bad.toml: cohort: is missing; needed is a section with size"


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("quorum = 9\nmin_available = 9", "cohort.quorum", "above cohort.size 8; allowed are 1 to 8"),
        ("rate = 0.5", "cohort.rate", 'only "poisson" has a rate; leave it out'),
        ("quorum = 0", "cohort.quorum", 'needs cohort.sampler "poisson"'),
        ("min_available = 2", "cohort.min_available", "could never succeed; allowed from 6"),
        ('sampler = "poisson"\nover_selection = 1.5', "cohort.over_selection", "does not go with cohort.sampler"),
        ("[straggler]\nreport_window_s = 3\nlearned = {}", "straggler.report_window_s", "straggler.learned sets"),
        ("[straggler]\nexponent = 1", "straggler.exponent", 'straggler.late is "drop"; leave it out'),
        ("[straggler.learned]\nmin_s = 9000", "straggler.learned.min_s", "above max_s 3600"),
        ("[straggler.learned]\nmax_s = 60", "straggler.learned.initial_s", "not between min_s 5 and max_s 60"),
        ('[aggregation]\nweighting = "uniform"\nmax_weight = 3', "aggregation.max_weight", "has no effect"),
        ("[aggregation]\nmax_abs = 3", "aggregation.max_abs", "a power of two from 2^-24 to 2^20"),
        ("[aggregation]\nmax_weight = 4294967296\nmax_abs = 65536", "aggregation.max_weight", "to 134217727"),
        ("[optimiser]\nmomentum = 0.5", "optimiser.momentum", "it belongs to fedavgm, not to fedavg"),
        ("[training]\nsizes = [1, 2]", "training.sizes", "allowed are a number, a whole number"),
        ("[training]\nlr = inf", "training.lr", "not finite"),
        ("[training]\nproximal_mu = -0.1", "training.proximal_mu", "allowed is a number from 0"),
        ("[training]\nproximal_mu = true", "training.proximal_mu", "allowed is a number from 0"),
        ("[training]\nproximal_mu = 'a'", "training.proximal_mu", "allowed is a number from 0"),
        ("[training]\n'a b' = 1", "training.a b", "not a name"),
        ("[training]\nseed = 9223372036854775808", "training.seed", "beyond 64 bits"),
        ("[evaluation]\nserver = 'os.system'", "evaluation.server", "the name of an installed evaluator"),
        ("[straggler]\nreport_window_s = nan", "straggler.report_window_s", "a number above 0"),
        ("[retention]\nbest = 'accuracy'", "retention.best", "`eval/NAME` or `server/NAME`"),
        ("[retention]\nmode = 'min'", "retention.mode", "retention.best names no metric"),
        ("[stop]\nmetric = 'train/loss'\nmode = 'min'\npatience = 2", "stop.metric", "`eval/NAME` or `server/NAME`"),
        (
            "[stop]\nmetric = 'eval/loss'\npatience = 2",
            "stop.mode",
            'needed is "min" (lower is better, as for a loss) or "max"',
        ),
        ("[retention]\nbest = 'eval/auc'", "retention.mode", 'needed for eval/auc is "min" (lower'),
        ("[stop]\nmetric = 'eval/loss'\nmode = 'min'\npatience = 0", "stop.patience", "a whole number from 1"),
        (
            "[retention]\nbest = 'eval/loss'\nmode = 'min'\n[stop]\nmetric = 'eval/loss'\nmode = 'max'\npatience = 2",
            "stop.mode",
            'is "max" for eval/loss and retention.mode is "min"',
        ),
        (
            "[retention]\nbest = 'eval/loss'\nmode = 'max'\n[stop]\nmetric = 'eval/loss'\nmode = 'min'\npatience = 2",
            "stop.mode",
            "write the same mode in both sections",
        ),
        (
            "[stop]\nmetric = 'eval/loss'\nmode = 'min'\npatience = 2\n"
            "[evaluation]\nbefore_training = false\nfinal = false",
            "stop.metric",
            "participants do not evaluate; set evaluation.before_training to true",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(text: str, key: str, words: str) -> None:
    assert words in problems_of(f"{MINIMAL}{text}\n")[key]


def test_what_is_not_toml_text_is_refused() -> None:
    with pytest.raises(JobFileError, match=r"job\.toml: not TOML: .*table declaration"):
        parse_job("[job")
    with pytest.raises(JobFileError, match="not UTF-8 text: byte 1 is 0xff"):
        parse_job(b"a\xff")
    with pytest.raises(JobFileError, match=f"at most {MAX_JOB_BYTES}"):
        parse_job(b"#" * (MAX_JOB_BYTES + 1))
    with pytest.raises(JobFileError, match="allowed is a table"):
        parse_job("job = 3")


def test_long_values_are_cut_in_messages() -> None:
    line = problems_of(f'[job]\nname = "{"x" * 500}"\nrounds = 1\n')["job.name"]
    assert len(line) < 300


def test_the_error_is_the_callers_and_has_a_code() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_job("")
    assert caught.value.detail.code == "job.invalid"


@given(st.text(max_size=200))
def test_any_text_gives_a_job_or_a_job_file_error(text: str) -> None:
    with contextlib.suppress(JobFileError):
        parse_job(text)


@pytest.mark.parametrize(
    ("text", "all_of_them", "names"),
    [('"all"', True, ()), ('["north", "paaaa"]', False, ("north", "paaaa")), ("[]", False, ())],
)
def test_who_is_required_is_all_or_a_list_of_names(text: str, all_of_them: bool, names: tuple[str, ...]) -> None:
    cohort = parse_job(f"{MINIMAL}required = {text}\n").cohort
    assert (cohort.requires_all, cohort.required_names) == (all_of_them, names)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('"north"', 'allowed is a list of different names, or "all"'),
        ("[1]", 'allowed is a list of different names, or "all"'),
        ('[""]', 'allowed is a list of different names, or "all"'),
        ('["north", "north"]', 'allowed is a list of different names, or "all"'),
        ('["a", "b", "c", "d", "e", "f", "g", "h", "i"]', "cohort.size 8 has no room"),
    ],
)
def test_other_requirements_are_refused(text: str, words: str) -> None:
    assert words in problems_of(f"{MINIMAL}required = {text}\n")["cohort.required"]


def test_poisson_sampling_takes_no_required_names() -> None:
    text = f'{MINIMAL}sampler = "poisson"\n'
    assert parse_job(f'{text}required = "all"\n').cohort.requires_all
    assert "draws each participant independently" in problems_of(f'{text}required = ["north"]\n')["cohort.required"]


@pytest.mark.parametrize("text", [f"rounds = {'9' * 5000}", "x = " + "[" * 5000])
def test_what_the_parser_of_toml_gives_up_on_is_a_problem_of_the_file(text: str) -> None:
    """Python converts at most 4,300 digits, and raises a plain ValueError beyond."""
    assert "not TOML" in problems_of(text)[""]
