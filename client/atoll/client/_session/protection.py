"""Protection of a participant's results: all outgoing results pass through here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from atoll.client._privacy.clipping import ANY_FINITE, Scaled, clip_factor, norm_of
from atoll.client._privacy.keystream import Keystream
from atoll.client._privacy.ledger import Ledger
from atoll.client._privacy.promises import Promises, path_of
from atoll.client._privacy.randomisers import Noise, cost
from atoll.client._state.records import FOLDER
from atoll.client._transfer.elements import DeltaSource, ElementSource, Shard
from atoll.client.errors import TrainerError, UpdateError, UsageError, text_for_server
from atoll.client.policy import Policy
from atoll.client.privacy_demand import Total, is_row_private
from atoll.client.task import TaskKind
from atoll.client.update import finite_metrics
from atoll.wire.chunks import ElementRange
from atoll.wire.encoding import Encoding

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.client._privacy.randomisers import LocalPrivacy
    from atoll.client.model import Model
    from atoll.client.task import Task
    from atoll.client.update import Update

log = logging.getLogger("atoll.client")

LEDGER_FILE = "updates.json"
PARTICIPANT = "participant"


@dataclass(frozen=True)
class Outgoing:
    """An update as it is sent: its elements, weight and metrics."""

    shard: Shard
    weight: int
    partial: bool
    metrics: Mapping[str, float]


class Protection:
    """Protection without local noise: updates of tasks with privacy terms are clipped and sent without metrics.

    Args:
        promises: where terms are recorded; None: nowhere.
        policy: whose ``errors`` and ``metrics`` limit other outgoing data; None: the default policy.

    Attributes:
        silent: whether only noised updates may be sent.
    """

    silent = False

    def __init__(self, promises: Promises | None = None, policy: Policy | None = None) -> None:
        self._promises = promises
        self._policy = policy or Policy()

    def objection(self, task: Task) -> str | None:
        """The reason to decline a task; None to accept it.

        Raises:
            UsageError: if the ledger of the participant's own noise is damaged.
        """
        if is_row_private(task) and task.kind is not TaskKind.STATISTICS:
            return "privacy: the terms protect rows, as those of statistics may; this task asks for something else"
        if self._promises is None or task.kind is TaskKind.EVALUATE:
            return None
        try:
            return self._promises.objection(task)
        except UsageError as error:
            log.warning("%s is declined: %s", task.key, error)
            return "privacy: the record of promises to this participant cannot be read; its log says why"

    def evaluates(self, task: Task) -> bool:
        """Whether metrics of the received model may be reported. Privacy terms cover updates only."""
        return task.kind is TaskKind.EVALUATE or task.privacy is None

    def charge(self, task: Task) -> None:
        """Charge the task to the ledgers and record its promise, before training, even if nothing is sent later.

        Raises:
            BudgetSpentError: if a limit does not allow it.
            UsageError: if it cannot be recorded.
        """
        if self._promises is not None:
            self._promises.keep(task)

    def outgoing(self, model: Model, update: Update, task: Task, declared: int) -> Outgoing:  # noqa: ARG002  # subclasses use it
        """The update to send, made from a checked update. Its elements are read during the upload.

        Raises:
            UpdateError: for an update that is not finite.
        """
        ranges = ranges_of(model, task)
        weight, metrics = int(update.weight), self.sendable(update.metrics)
        if task.privacy is None or is_row_private(task):
            metrics = metrics if task.privacy is None else {}
            return Outgoing(Shard(ranges, _delta(model, update, task.max_abs)), weight, update.partial, metrics)
        source: ElementSource = _delta(model, update, ANY_FINITE)
        factor = clip_factor(norm_of(source, ranges, Encoding.FLOAT32), task.privacy.clip_norm)
        source = Scaled(source, factor, task.max_abs) if factor < 1 else _delta(model, update, task.max_abs)
        return Outgoing(Shard(ranges, source), weight, update.partial, {})

    def sendable(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The finite metrics whose names the policy allows."""
        finite = finite_metrics(metrics)
        sent = self._policy.sendable(finite)
        if len(sent) < len(finite):
            log.info("metrics that the policy does not send: %s", ", ".join(sorted(finite.keys() - sent.keys())))
        return sent

    def text_for_server(self, error: Exception) -> str:
        """The description of a failure for the server."""
        return text_for_server(error, self._policy.errors)


class LocalProtection(Protection):
    """Adds noise to every update, also without privacy terms; see ``atoll.client.local_privacy``.

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
            return "privacy: metrics would reveal this participant's data, and only noised updates are sent"
        if task.kind is TaskKind.STATISTICS:
            return "privacy: only noised updates are sent, and noise would ruin the sums of statistics"
        if not self._mechanism.reach <= task.max_abs:
            return (
                f"privacy: noised updates have values of magnitude up to {self._mechanism.reach:.3g}, and the run "
                f"takes up to {task.max_abs:g}: aggregation.max_abs must be larger, or the clip norm smaller"
            )
        return super().objection(task) or self._ledger.objection(self._mechanism.release)

    def evaluates(self, task: Task) -> bool:  # noqa: ARG002  # never
        """See ``Protection``."""
        return False

    def charge(self, task: Task) -> None:
        """See ``Protection``."""
        super().charge(task)
        self._ledger.charge(task.key, task.run_name, self._mechanism.release)

    def outgoing(self, model: Model, update: Update, task: Task, declared: int) -> Outgoing:
        """See ``Protection``; an update that is not finite counts as zero, because a failure would reveal data."""
        ranges = ranges_of(model, task)
        source: ElementSource = _delta(model, update, ANY_FINITE)
        try:
            norm = norm_of(source, ranges)
        except UpdateError as error:
            log.warning("%s: only noise is sent, because %s", task.key, error)
            source, norm = _Zeros(), 0.0
        noise = Noise(ranges, Keystream(), Keystream(), task.max_abs)
        noised = self._mechanism.noised(source, norm, noise)
        return Outgoing(Shard(ranges, noised), min(declared, task.max_weight), partial=False, metrics={})

    def text_for_server(self, error: Exception) -> str:
        """See ``Protection``; even the type of an error of the participant's own code may depend on its data."""
        if isinstance(error, TrainerError):
            return "the participant's own code failed; its log says why"
        return super().text_for_server(error)


def protection_of(policy: Policy, state: Path, server: str) -> Protection:
    """The protection that a policy requires; ``server`` is ``Endpoint.federation``."""
    limit = Total() if policy.privacy is None else policy.privacy.total
    promises = Promises(path_of(state), server, limit)
    local = policy.local_privacy
    return Protection(promises, policy) if local is None else LocalProtection(local, state, promises, policy)


def ranges_of(model: Model, task: Task) -> tuple[ElementRange, ...]:
    """The elements that a task's update must contain."""
    return task.ranges or (ElementRange.run(0, model.layout.size),)


def _delta(model: Model, update: Update, max_abs: float) -> DeltaSource:
    return DeltaSource(model, weights=update.tensors, is_delta=update.delta is not None, max_abs=max_abs)


class _Zeros:
    """An update of zeros."""

    def read(self, elements: ElementRange, encoding: Encoding, out: npt.NDArray[np.generic]) -> None:  # noqa: ARG002  # the protocol's
        out[:] = 0
