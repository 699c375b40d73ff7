"""The participant's own policy: what it agrees to, checked before it trains, whatever the server says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from atoll.wire.figures import counted

if TYPE_CHECKING:
    from atoll.client.failures import ErrorDetails
    from atoll.client.privacy.demand import PrivacyDemand
    from atoll.client.randomise import LocalPrivacy
    from atoll.client.task import Task
    from atoll.wire.messages import SettingValue


@dataclass(frozen=True)
class Decision:
    """Whether to take a task; ``reason`` goes to the server and into its records."""

    accepted: bool
    reason: str = ""

    @classmethod
    def accept(cls) -> Decision:
        """Take the task."""
        return cls(accepted=True)

    @classmethod
    def decline(cls, reason: str) -> Decision:
        """Leave it, for this reason."""
        return cls(accepted=False, reason=reason)


@dataclass(frozen=True)
class Spent:
    """What the participant has given in the last 24 hours: tasks accepted, bytes moved."""

    rounds: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class SettingRule:
    """What one training setting may be: a number within bounds, or one of ``choices``."""

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


Rule = Callable[["Policy", "Task", Spent], str | None]
"""Says why a task is not acceptable, or None."""


@dataclass(frozen=True)
class Policy:
    """What the participant agrees to; the defaults agree to any run within wide daily bounds.

    Attributes:
        min_cohort: the smallest number of participants invited together.
        runs: names of runs that are allowed, with ``*`` and ``?``.
        settings: allowed settings by name; a setting that is not listed is refused. None allows any.
        max_rounds_per_day: tasks accepted in 24 hours.
        max_bytes_per_day: bytes downloaded and uploaded in 24 hours.
        max_model_bytes: the largest model that is downloaded. At most ``Limits.cached_models`` + 1 of them are on disk.
        min_free_disk_bytes: a download leaves so much of the disk free.
        errors: what the server is told of an error: its ``type``, or its ``text`` too, which may quote data.
        metrics: names of metrics that may be sent, with ``*`` and ``?``; others stay here.
        privacy: what the operator must promise; None asks for nothing.
        local_privacy: a randomiser for every update, whatever the server promises; None sends updates as they are.
        hook: asked last, for what only this machine knows: hours, battery, metered links. Runs in a thread.
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
        """Those metrics whose names may be sent."""
        return {
            name: value
            for name, value in metrics.items()
            if any(fnmatchcase(name, pattern) for pattern in self.metrics)
        }

    def decide(self, task: Task, spent: Spent) -> Decision:
        """Whether to take the task: the first rule that objects declines it."""
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
