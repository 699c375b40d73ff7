from __future__ import annotations

from pathlib import Path

import pytest

from atoll.client import Decision, Policy, PolicyError, SettingRule, Settings, Task
from atoll.client.policy import Spent
from atoll.client.policy_file import read_policy
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
        (Policy(runs=("faces", "Digits-*")), "policy: run 'digits-7' is not among faces, Digits-*"),
        (Policy(runs=()), "policy: run 'digits-7' is not among none"),
        (Policy(max_model_bytes=999), "policy: a model of 1000 bytes, at most 999 allowed"),
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
    assert policy.hook is not None
    assert policy.hook(TASK) == Decision.decline("night")


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
