"""The participant's own policy: the tasks that it accepts, checked on this machine before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from atoll.text.figures import counted

if TYPE_CHECKING:
    from atoll.client._state.usage import Spent
    from atoll.client.errors import ErrorDetails
    from atoll.client.local_privacy import LocalPrivacy
    from atoll.client.privacy_demand import PrivacyDemand
    from atoll.client.task import Task
    from atoll.wire.messages import SettingValue


@dataclass(frozen=True)
class Decision:
    """Whether to accept a task; the server gets and records ``reason``."""

    accepted: bool
    reason: str = ""

    @classmethod
    def accept(cls) -> Decision:
        """Accept the task."""
        return cls(accepted=True)

    @classmethod
    def decline(cls, reason: str) -> Decision:
        """Decline the task, for this reason."""
        return cls(accepted=False, reason=reason)


@dataclass(frozen=True)
class SettingRule:
    """The allowed values of one training setting: a number within bounds, or one of ``choices``."""

    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[SettingValue, ...] = ()

    def objection(self, name: str, value: SettingValue) -> str | None:
        """Why the value is not allowed; None if it is."""
        if self.choices and value not in self.choices:
            return f"setting {name} is {value!r}; allowed are {', '.join(map(repr, self.choices))}"
        if self.minimum is None and self.maximum is None:
            return None
        if isinstance(value, bool | str):
            return f"setting {name} is {value!r}; a number is needed"
        low = float("-inf") if self.minimum is None else self.minimum
        high = float("inf") if self.maximum is None else self.maximum
        if not low <= value <= high:
            return f"setting {name} is {value!r}; allowed is {low:g} to {high:g}"
        return None


Rule = Callable[["Policy", "Task", "Spent"], str | None]
"""A rule: returns the reason to decline a task, or None."""


@dataclass(frozen=True)
class Policy:
    """The tasks that the participant accepts; the defaults accept any run within wide daily limits.

    Attributes:
        min_cohort: smallest number of participants invited together.
        runs: names of allowed runs, with ``*`` and ``?``.
        settings: allowed settings by name; other settings are refused. None allows any.
        max_rounds_per_day: maximum number of tasks accepted in 24 hours.
        max_bytes_per_day: maximum number of bytes downloaded and uploaded in 24 hours.
        max_model_bytes: largest model to download. At most ``Limits.cached_models`` + 1 models are on disk.
        min_free_disk_bytes: bytes of the disk that a download must leave free.
        errors: how much of an error is sent to the server: its ``type``, or its ``text`` too, which may quote data.
        metrics: names of metrics that may be sent, with ``*`` and ``?``; others are not sent.
        privacy: terms that the operator must promise; None accepts any.
        local_privacy: a randomiser for every update, independent of the operator's terms; None adds no noise.
        hook: the last rule, for conditions of this machine: hours, battery, metered links. Runs in a thread.
        demands: further rules, checked before the hook.
    """

    min_cohort: int = 1
    runs: tuple[str, ...] = ("*",)
    settings: Mapping[str, SettingRule] | None = None
    max_rounds_per_day: int = 100_000
    max_bytes_per_day: int = 100 << 40
    max_model_bytes: int = 8 << 30
    min_free_disk_bytes: int = 1 << 30
    errors: ErrorDetails = "type"
    metrics: tuple[str, ...] = ("*",)
    privacy: PrivacyDemand | None = None
    local_privacy: LocalPrivacy | None = None
    hook: Callable[[Task], Decision] | None = None
    demands: tuple[Rule, ...] = field(default=(), repr=False)

    def sendable(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The metrics whose names may be sent."""
        return {
            name: value
            for name, value in metrics.items()
            if any(fnmatchcase(name, pattern) for pattern in self.metrics)
        }

    def decide(self, task: Task, spent: Spent) -> Decision:
        """Whether to accept the task: the first rule with an objection declines it."""
        for rule in (*_RULES, *self.demands):
            objection = rule(self, task, spent)
            if objection is not None:
                return Decision.decline(objection)
        return Decision.accept() if self.hook is None else self.hook(task)


def _cohort(policy: Policy, task: Task, _: Spent) -> str | None:
    if task.cohort_size < policy.min_cohort:
        return f"policy: cohort of {task.cohort_size}, at least {policy.min_cohort} wanted"
    return None


def _run(policy: Policy, task: Task, _: Spent) -> str | None:
    if any(fnmatchcase(task.run_name, pattern) for pattern in policy.runs):
        return None
    return f"policy: run {task.run_name!r} is not among those allowed"


def _settings(policy: Policy, task: Task, _: Spent) -> str | None:
    if policy.settings is None:
        return None
    for name, value in task.settings.items():
        rule = policy.settings.get(name)
        objection = f"setting {name} is not allowed" if rule is None else rule.objection(name, value)
        if objection is not None:
            return f"policy: {objection}"
    return None


def _rounds(policy: Policy, _: Task, spent: Spent) -> str | None:
    if spent.rounds >= policy.max_rounds_per_day:
        return f"policy: {counted(spent.rounds, 'round')} in 24 hours, at most {policy.max_rounds_per_day} allowed"
    return None


def _bytes(policy: Policy, task: Task, spent: Spent) -> str | None:
    if task.model_bytes > policy.max_model_bytes:
        return (
            f"policy: a model of {task.model_bytes} bytes, at most {policy.max_model_bytes} allowed (max_model_bytes)"
        )
    needed = 2 * task.model_bytes
    if spent.bytes + needed > policy.max_bytes_per_day:
        return f"policy: {spent.bytes} bytes in 24 hours and {needed} more, at most {policy.max_bytes_per_day} allowed"
    return None


def _privacy(policy: Policy, task: Task, _: Spent) -> str | None:
    objection = None if policy.privacy is None else policy.privacy.objection(task)
    return None if objection is None else f"policy: {objection}"


_RULES: tuple[Rule, ...] = (_cohort, _run, _settings, _privacy, _rounds, _bytes)
