"""One task: a round of a run, as the participant sees it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from atoll.client.settings import Settings
from atoll.wire.encoding import Encoding

if TYPE_CHECKING:
    from atoll.client.control import TaskControl
    from atoll.client.model import Model
    from atoll.wire.chunks import ElementRange
    from atoll.wire.privacy_terms import PrivacyTerms
    from atoll.wire.statistics_query import StatisticsQuery


class TaskKind(StrEnum):
    """The kind of work: training, evaluation, or statistics of the participant's table."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    STATISTICS = "statistics"


@dataclass(frozen=True, order=True)
class RoundKey:
    """Identifies one attempt at one round of one run; rounds and attempts count from 0."""

    run: str
    round: int
    attempt: int

    def __str__(self) -> str:
        again = f", attempt {self.attempt + 1}" if self.attempt else ""
        return f"run {self.run} round {self.round + 1}{again}"


@dataclass(frozen=True)
class Task:
    """The work that the server asks for in one round.

    Attributes:
        key: run, round and attempt.
        run_name: the operator's name for the run.
        kind: train, evaluate or statistics.
        rounds_total: number of rounds that the run plans.
        settings: typed training settings (``task.settings.number("learning_rate", 0.1)``).
        cohort_size: number of participants invited together.
        max_weight: largest ``Update.weight`` that the server accepts from this participant.
        max_abs: largest magnitude of an element of local - global that the server accepts.
        encoding: encoding of the update on the wire.
        evaluate: whether the received model is evaluated before training too.
        model_bytes: size of all downloads for this task.
        inputs: further named tensor sets besides the model; usually empty.
        ranges: the elements of the model that this round updates (atoll.wire.chunks.ElementRange, over the layout's
            tensors one after another); empty: all. Train the whole model: only these elements of the update are sent.
        frozen: names of tensors, with ``*`` and ``?``, that no round changes; see ``is_frozen``.
        privacy: the operator's privacy terms (atoll.wire.privacy_terms.PrivacyTerms); None if there are none.
        seed: seeds this participant's random numbers in this round (0 to 2^63 - 1), in a deployment and in a simulation
            alike, so that a run can be repeated. Server and operator know it: draw batches and dropout from it, never
            noise for privacy or keys. The torch adapter seeds PyTorch from it.
        statistics: the query of a task of kind statistics; None for other kinds.
    """

    key: RoundKey
    run_name: str
    kind: TaskKind
    rounds_total: int
    settings: Settings
    cohort_size: int
    max_weight: int
    max_abs: float
    control: TaskControl = field(repr=False)
    encoding: Encoding = Encoding.FLOAT32
    evaluate: bool = False
    model_bytes: int = 0
    traceparent: str = ""
    inputs: Mapping[str, Model] = field(default_factory=dict, repr=False)
    ranges: tuple[ElementRange, ...] = ()
    frozen: tuple[str, ...] = ()
    privacy: PrivacyTerms | None = None
    seed: int = 0
    statistics: StatisticsQuery | None = None

    def is_frozen(self, tensor: str) -> bool:
        """Whether a tensor is frozen: do not train it. The update may leave it out, and changes are not sent."""
        return any(fnmatchcase(tensor, pattern) for pattern in self.frozen)

    @property
    def run(self) -> str:
        """Identifier of the run."""
        return self.key.run

    @property
    def round(self) -> int:
        """Which round, from 0."""
        return self.key.round

    @property
    def attempt(self) -> int:
        """Which attempt at this round, from 0."""
        return self.key.attempt

    @property
    def proximal_mu(self) -> float:
        """FedProx: the weight mu of the penalty mu/2 · |w - w_global|² (Li et al. 2020, eq. 2); 0 without the setting.

        The torch adapter honours it; your own trainer adds ``mu * (w - w_global)`` to each gradient.
        """
        return self.settings.number("proximal_mu", 0.0)

    @property
    def remaining_s(self) -> float:
        """Seconds to the deadline by which the report must be in; negative after it."""
        return self.control.remaining_s

    @property
    def should_stop(self) -> bool:
        """Whether to end training now and return the result so far: stopped, or only the time to send it is left."""
        return self.control.should_stop

    @property
    def stop_event(self) -> threading.Event:
        """Set when the server or the user stops the task, and when only the time to send is left."""
        return self.control.stop_event

    @property
    def stop_reason(self) -> str:
        """The reason for the stop, once ``stop_event`` is set."""
        return self.control.reason
