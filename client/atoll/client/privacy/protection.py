"""What happens to a participant's results on their way out: the one place that all of them pass."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from atoll.client import failures
from atoll.client.errors import TrainerError, UpdateError, UsageError
from atoll.client.policy import Policy
from atoll.client.privacy.clipping import ANY_FINITE, Scaled, clip_factor, norm_of
from atoll.client.privacy.demand import Total
from atoll.client.privacy.keystream import Keystream
from atoll.client.privacy.ledger import Ledger
from atoll.client.privacy.promises import Promises, path_of
from atoll.client.privacy.records import FOLDER
from atoll.client.randomise import Noise, cost
from atoll.client.task import TaskKind
from atoll.client.transfer.source import DeltaSource, ElementSource, Shard
from atoll.client.update import finite_metrics
from atoll.wire.chunks import ElementRange
from atoll.wire.encoding import Encoding

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.client.model import Model
    from atoll.client.randomise import LocalPrivacy
    from atoll.client.task import Task
    from atoll.client.update import Update

log = logging.getLogger("atoll.client")

LEDGER_FILE = "updates.json"
PARTICIPANT = "participant"


@dataclass(frozen=True)
class Outgoing:
    """An update as it is sent: its elements, and what is said about it."""

    shard: Shard
    weight: int
    partial: bool
    metrics: Mapping[str, float]


class Protection:
    """Without noise of its own: updates of tasks with privacy terms are clipped, and go without metrics.

    Args:
        promises: where the terms are noted; None notes nothing.
        policy: whose ``errors`` and ``metrics`` say what may leave besides updates; None: the default.

    Attributes:
        silent: nothing but noised updates may leave.
    """

    silent = False

    def __init__(self, promises: Promises | None = None, policy: Policy | None = None) -> None:
        self._promises = promises
        self._policy = policy or Policy()

    def objection(self, task: Task) -> str | None:
        """Why a task cannot be done; None if it can.

        Raises:
            UsageError: if a ledger of the participant's own noise is damaged.
        """
        if self._promises is None or task.kind is TaskKind.EVALUATE:
            return None
        try:
            return self._promises.objection(task)
        except UsageError as error:
            log.warning("%s is declined: %s", task.key, error)
            return "privacy: the record of what was promised to this participant cannot be read; its log says why"

    def evaluates(self, task: Task) -> bool:
        """Whether metrics of the received model may be reported. Terms of privacy cover updates alone."""
        return task.kind is TaskKind.EVALUATE or task.privacy is None

    def charge(self, task: Task) -> None:
        """Before training: what will be sent is paid for, and what was promised noted, whether it is then sent or not.

        Raises:
            BudgetSpentError: if a limit does not allow it.
            UsageError: if it cannot be noted.
        """
        if self._promises is not None:
            self._promises.keep(task)

    def outgoing(self, model: Model, update: Update, task: Task, declared: int) -> Outgoing:  # noqa: ARG002  # for those who tell no other weight
        """What is sent of an update that has been checked. Its elements are read while they are sent.

        Raises:
            UpdateError: for an update that is not finite.
        """
        ranges = ranges_of(model, task)
        weight, metrics = int(update.weight), self.sendable(update.metrics)
        if task.privacy is None:
            return Outgoing(Shard(ranges, _delta(model, update, task.max_abs)), weight, update.partial, metrics)
        source: ElementSource = _delta(model, update, ANY_FINITE)
        factor = clip_factor(norm_of(source, ranges, Encoding.FLOAT32), task.privacy.clip_norm)
        source = Scaled(source, factor, task.max_abs) if factor < 1 else _delta(model, update, task.max_abs)
        return Outgoing(Shard(ranges, source), weight, update.partial, {})

    def sendable(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The metrics that may be sent: finite, under names that the policy allows."""
        finite = finite_metrics(metrics)
        sent = self._policy.sendable(finite)
        if len(sent) < len(finite):
            log.info("metrics that the policy keeps here: %s", ", ".join(sorted(finite.keys() - sent.keys())))
        return sent

    def told(self, error: Exception) -> str:
        """What the server is told of a failure."""
        return failures.told(error, self._policy.errors)


class LocalProtection(Protection):
    """Noises every update, whatever the server says; see ``atoll.client.randomise``.

    Args:
        local: the randomiser.
        state: the participant's directory.
        promises: see ``Protection``.
        policy: see ``Protection``.
    """

    silent = True

    def __init__(
        self, local: LocalPrivacy, state: Path, promises: Promises | None = None, policy: Policy | None = None
    ) -> None:
        super().__init__(promises, policy)
        self._mechanism = local.mechanism
        self._ledger = Ledger(local.ledger or state / FOLDER / LEDGER_FILE, PARTICIPANT, local.limit, cost)

    def objection(self, task: Task) -> str | None:
        """See ``Protection``."""
        if task.kind is TaskKind.EVALUATE:
            return "privacy: metrics would tell of this participant's data, and only noised updates are sent"
        if not self._mechanism.reach <= task.max_abs:
            return (
                f"privacy: noised updates have values of magnitude up to {self._mechanism.reach:.3g}, and the run "
                f"takes up to {task.max_abs:g}: aggregation.max_abs must be larger, or the clip norm smaller"
            )
        return super().objection(task) or self._ledger.objection(self._mechanism.release)

    def evaluates(self, task: Task) -> bool:  # noqa: ARG002  # whatever it is
        """See ``Protection``."""
        return False

    def charge(self, task: Task) -> None:
        """See ``Protection``."""
        super().charge(task)
        self._ledger.charge(task.key, task.run_name, self._mechanism.release)

    def outgoing(self, model: Model, update: Update, task: Task, declared: int) -> Outgoing:
        """See ``Protection``; an update that is not finite counts as zero, for a failure would tell of the data."""
        ranges = ranges_of(model, task)
        source: ElementSource = _delta(model, update, ANY_FINITE)
        try:
            norm = norm_of(source, ranges)
        except UpdateError as error:
            log.warning("%s: nothing but noise is sent, for %s", task.key, error)
            source, norm = _Zeros(), 0.0
        noise = Noise(ranges, Keystream(), Keystream(), task.max_abs)
        noised = self._mechanism.noised(source, norm, noise)
        return Outgoing(Shard(ranges, noised), min(declared, task.max_weight), partial=False, metrics={})

    def told(self, error: Exception) -> str:
        """See ``Protection``; even which error the participant's own code raised may depend on its data."""
        if isinstance(error, TrainerError):
            return "the participant's own code failed; its log says why"
        return super().told(error)


def protection_of(policy: Policy, state: Path, server: str) -> Protection:
    """The protection that a policy asks for, in runs of a server (``Endpoint.federation``)."""
    limit = Total() if policy.privacy is None else policy.privacy.total
    promises = Promises(path_of(state), server, limit)
    local = policy.local_privacy
    return Protection(promises, policy) if local is None else LocalProtection(local, state, promises, policy)


def ranges_of(model: Model, task: Task) -> tuple[ElementRange, ...]:
    """The elements that a task's update has."""
    return task.ranges or (ElementRange.run(0, model.layout.size),)


def _delta(model: Model, update: Update, max_abs: float) -> DeltaSource:
    return DeltaSource(model, weights=update.tensors, is_delta=update.delta is not None, max_abs=max_abs)


class _Zeros:
    """An update that changes nothing."""

    def read(self, elements: ElementRange, encoding: Encoding, out: npt.NDArray[np.generic]) -> None:  # noqa: ARG002  # the protocol's
        out[:] = 0
