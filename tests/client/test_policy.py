from __future__ import annotations

from pathlib import Path

import pytest

from atoll.client import Decision, Policy, PolicyError, PrivacyDemand, SettingRule, Settings, Task
from atoll.client._privacy.ledger import Limit
from atoll.client._privacy.randomisers import Gaussian, LocalPrivacy, Sphere
from atoll.client._state.usage import Spent
from atoll.client.cli.policy_file import read_policy
from atoll.client.testing import make_task

TASK = make_task(
    run_name="digits-7",
    cohort_size=5,
    model_bytes=1000,
    settings=Settings({"lr": 0.5, "optimiser": "sgd", "nesterov": True}),
)
ANY = SettingRule()


def reason(policy: Policy, spent: Spent | None = None) -> str:
    decision = policy.decide(TASK, spent or Spent())
    assert decision.accepted == (decision.reason == "")
    return decision.reason


def test_the_default_accepts() -> None:
    assert reason(Policy()) == ""


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(min_cohort=5), ""),
        (Policy(min_cohort=6), "policy: cohort of 5, at least 6 wanted"),
        (Policy(runs=("digits-*",)), ""),
        (Policy(runs=("faces", "digits-?")), ""),
        (Policy(runs=("faces", "Digits-*")), "policy: run 'digits-7' is not among those allowed"),
        (Policy(runs=()), "policy: run 'digits-7' is not among those allowed"),
        (Policy(max_model_bytes=999), "policy: a model of 1000 bytes, at most 999 allowed (max_model_bytes)"),
        (Policy(settings={"lr": ANY, "optimiser": ANY, "nesterov": ANY}), ""),
        (Policy(settings={"lr": ANY, "optimiser": ANY}), "policy: setting nesterov is not allowed"),
    ],
)
def test_rules(policy: Policy, expected: str) -> None:
    assert reason(policy) == expected


def test_quotas_count_the_last_day() -> None:
    policy = Policy(max_rounds_per_day=3, max_bytes_per_day=5000)
    assert reason(policy, Spent(2, 3000)) == ""
    assert reason(policy, Spent(3, 0)) == "policy: 3 rounds in 24 hours, at most 3 allowed"
    assert "3001 bytes in 24 hours and 2000 more" in reason(policy, Spent(0, 3001))


@pytest.mark.parametrize(
    ("rule", "value", "allowed"),
    [
        (SettingRule(0.0, 1.0), 1, True),
        (SettingRule(0.0, 1.0), 1.01, False),
        (SettingRule(minimum=2), 1, False),
        (SettingRule(maximum=2), float("nan"), False),
        (SettingRule(0.0, 1.0), "0.5", False),
        (SettingRule(0.0, 1.0), True, False),
        (SettingRule(choices=("sgd", "adam")), "adam", True),
        (SettingRule(choices=("sgd", "adam")), "rmsprop", False),
        (SettingRule(), "anything", True),
    ],
)
def test_setting_rules(rule: SettingRule, value: bool | float | str, allowed: bool) -> None:
    assert (rule.objection("x", value) is None) == allowed


def test_the_hook_is_asked_last() -> None:
    asked: list[Task] = []

    def hook(task: Task) -> Decision:
        asked.append(task)
        return Decision.decline("on battery")

    assert reason(Policy(hook=hook)) == "on battery"
    assert "cohort" in reason(Policy(hook=hook, min_cohort=99))
    assert asked == [TASK]


def test_demands_are_further_rules() -> None:
    def wants_noise(policy: Policy, task: Task, spent: Spent) -> str | None:
        del policy, spent
        return None if "noise" in task.settings else "privacy: no noise"

    assert reason(Policy(demands=(wants_noise,))) == "privacy: no noise"


# -- files ------------------------------------------------------------------------------------------------------------


SPHERE = '[local_privacy]\nmechanism = "sphere"\nepsilon = 1.0\nclip_norm = 2.0\nmax_epsilon = 4.0'
GAUSSIAN = "[local_privacy]\nepsilon = 1\ndelta = 1e-7\nclip_norm = 2\nmax_epsilon = 8\nmax_delta = 1e-5"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return path


def test_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_hours.py").write_text(
        "from atoll.client import Decision\ndef decide(task):\n    return Decision.decline('night')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    policy = read_policy(
        write(
            tmp_path,
            """
            min_cohort = 3
            runs = ["digits-*"]
            max_rounds_per_day = 100
            max_bytes_per_day = 2_000_000_000
            max_model_bytes = 500
            min_free_disk_bytes = 700
            errors = "text"
            metrics = ["loss"]
            hook = "my_hours:decide"
            [settings.lr]
            min = 0.0
            max = 1.0
            [settings.optimiser]
            choices = ["sgd", "adam"]
            """,
        )
    )
    assert policy.settings == {"lr": SettingRule(0.0, 1.0), "optimiser": SettingRule(choices=("sgd", "adam"))}
    assert (policy.min_cohort, policy.runs, policy.max_model_bytes) == (3, ("digits-*",), 500)
    assert policy.min_free_disk_bytes == 700
    assert (policy.errors, policy.metrics) == ("text", ("loss",))
    assert policy.hook is not None
    assert policy.hook(TASK) == Decision.decline("night")


def test_demands_of_privacy_and_noise_of_ones_own(tmp_path: Path) -> None:
    demand = '[privacy]\nmax_epsilon = 8\nmax_delta = 1e-5\nmin_noise_multiplier = 0.5\nmechanisms = ["tree"]\n'
    policy = read_policy(write(tmp_path, demand + GAUSSIAN))
    assert policy.privacy == PrivacyDemand(
        max_epsilon=8.0, max_delta=1e-5, min_noise_multiplier=0.5, mechanisms=("tree",)
    )
    more = 'max_total_epsilon = 20\nmax_total_delta = 1e-4\nadjacencies = ["replace_one"]\nsamplings = ["none"]\n'
    assert read_policy(write(tmp_path, f"[privacy]\n{more}")).privacy == PrivacyDemand(
        max_total_epsilon=20.0, max_total_delta=1e-4, adjacencies=("replace_one",), samplings=("none",)
    )
    assert policy.local_privacy == LocalPrivacy(Gaussian(1.0, 1e-7, 2.0), Limit(8.0, 1e-5))
    assert reason(policy) == "policy: the run has no privacy terms, and they are required"
    sphere = read_policy(write(tmp_path, f"[privacy]\nrequire = false\n{SPHERE}"))
    assert sphere.privacy == PrivacyDemand(require=False)
    assert sphere.local_privacy == LocalPrivacy(Sphere(1.0, 2.0), Limit(4.0, 0.0))
    assert reason(sphere) == ""


def test_an_empty_file_is_the_default(tmp_path: Path) -> None:
    assert read_policy(write(tmp_path, "")) == Policy()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("min_cohort = -1", "min_cohort = -1; allowed is a whole number, at least 0"),
        ("min_cohort = true", "min_cohort = True"),
        ("max_bytes_per_day = '2 GB'", "max_bytes_per_day = '2 GB'"),
        ("cohort = 3", "unknown key cohort; allowed are min_cohort"),
        ("runs = 'digits'", "runs = 'digits'; allowed is a list of texts"),
        ("errors = 'all'", 'errors = \'all\'; allowed is "type" or "text"'),
        ("metrics = 'loss'", "metrics = 'loss'; allowed is a list of texts"),
        ("settings = 3", r"allowed is tables \[settings.NAME\]"),
        ("[settings]\nlr = 3", "settings.lr = 3; allowed is a table"),
        ("[settings.lr]\nminimum = 3", "unknown key settings.lr.minimum; allowed are min, max, choices"),
        ("[settings.lr]\nmin = 'x'", "settings.lr.min = 'x'; allowed is a number"),
        ("[settings.lr]\nmin = 2\nmax = 1", "settings.lr.min = 2.0; allowed is at most settings.lr.max = 1"),
        ("[settings.lr]\nchoices = [[1]]", "settings.lr.choices"),
        ("hook = 3", "hook = 3; allowed is a text"),
        ("hook = 'nowhere:f'", "hook: no module 'nowhere'"),
        ("hook = 'math:pi'", "hook = 'math:pi'; allowed is the name of a function"),
        ("min_cohort =", "is not TOML"),
        ("privacy = 3", "privacy = 3; allowed is a table"),
        ("[privacy]\nepsilon = 3", "unknown key privacy.epsilon; allowed are require, max_epsilon"),
        ("[privacy]\nmax_epsilon = -1", r"privacy\.max_epsilon = -1; allowed is a number, at least 0"),
        ("[privacy]\nmax_delta = nan", r"privacy\.max_delta = nan"),
        ("[privacy]\nrequire = 1", r"privacy\.require = 1; allowed is true or false"),
        ("[privacy]\nmechanisms = ['laplace']", r"privacy\.mechanisms = \['laplace'\]; .* gaussian, tree, banded, blt"),
        ("[privacy]\nadjacencies = ['add']", r"privacy\.adjacencies = \['add'\]; .* add_remove, replace_one"),
        ("[privacy]\nsamplings = ['uniform']", r"\['uniform'\]; .* none, poisson, fixed_size"),
        ("[privacy]\nmax_total_epsilon = nan", r"privacy\.max_total_epsilon = nan"),
        ("[privacy]\nrequire = false\nmax_total_delta = 1e-4", "privacy: require = false with max_total_epsilon or"),
        ("[privacy]\nmechanisms = 'tree'", r"privacy\.mechanisms = 'tree'; allowed is a list of texts"),
        ("local_privacy = true", "local_privacy = True; allowed is a table"),
        ("[local_privacy]\nmechanism = 'laplace'", "'laplace'; allowed is gaussian or sphere"),
        ("[local_privacy]\nmechanism = ['sphere']", r"\['sphere'\]; allowed is gaussian or sphere"),
        ("[local_privacy]\nepsilon = 1", "local_privacy lacks delta, clip_norm, max_epsilon, max_delta"),
        (f"{SPHERE}\ndelta = 0.1", r"local_privacy\.delta = 0\.1; allowed is left out"),
        (f"{SPHERE}\nsigma = 0.1", r"unknown key local_privacy\.sigma"),
        (SPHERE.replace("epsilon = 1.0", "epsilon = 0"), "local_privacy: epsilon = 0.0; allowed is above 0"),
        (SPHERE.replace("max_epsilon = 4.0", "max_epsilon = 0.5"), "one update costs epsilon 1 at delta 0"),
        (SPHERE.replace("clip_norm = 2.0", "clip_norm = 'x'"), r"local_privacy\.clip_norm = 'x'; allowed is a number"),
    ],
)
def test_errors_name_file_key_value_and_what_is_allowed(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(PolicyError, match=message) as caught:
        read_policy(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"cannot read the policy .*gone\.toml"):
        read_policy(tmp_path / "gone.toml")
