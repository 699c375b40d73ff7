"""Test a participant without a network: a server in the same process that runs rounds.

::

    result = FakeServer({"weight": np.zeros((64, 10), np.float32)}).run(Digits(), rounds=3, settings={"epochs": 1})
    assert result.rounds[-1].reports[0].metrics["loss"] < 0.5

The code of a real session makes the same checks and raises the same errors: names, shapes, values that are not finite
or too large, weights above the declared one, the participant's policy and privacy. Updates pass through the wire's
encoding, and the model of round r + 1 is that of round r plus the weighted mean of its updates.

``FakeServer.statistics`` does the same for tables::

    found = FakeServer.statistics(StatisticsQuery(("age",)), Ward(0), Ward(1), Ward(2)).findings
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from atoll.client._clock import now_s
from atoll.client._fake_rounds import FakeReport, FakeRound, Member, members_of, received
from atoll.client._statistics import answer
from atoll.client.control import TaskControl
from atoll.client.model import Model, as_float32
from atoll.client.participant import Participant, declared_examples
from atoll.client.policy import Policy
from atoll.client.settings import Settings
from atoll.client.task import RoundKey, Task, TaskKind
from atoll.client.update import Evaluation, Update, check_evaluation, check_update, finite_metrics
from atoll.formats.arrays import NamedArrays
from atoll.statistics import Disclosure, Findings, first_state, release_noised
from atoll.statistics.limbs import MAX_ABS
from atoll.wire.chunks import ElementRange
from atoll.wire.encoding import Encoding, float32_to_bfloat16
from atoll.wire.layout import Dtype
from atoll.wire.messages import SettingValue
from atoll.wire.seeds import task_seed

if TYPE_CHECKING:
    from atoll.wire.privacy_terms import PrivacyTerms
    from atoll.wire.statistics_query import StatisticsQuery

Floats = npt.NDArray[np.float64]


__all__ = ["FakeReport", "FakeRound", "FakeRun", "FakeServer", "FakeStatistics", "make_task", "model_of"]


@dataclass(frozen=True)
class FakeRun:
    """All rounds, and the model after the last one."""

    rounds: tuple[FakeRound, ...]
    model: Model


@dataclass(frozen=True)
class FakeStatistics:
    """All rounds, and the figures; None where a participant declined, because a real run ends there."""

    rounds: tuple[FakeRound, ...]
    findings: Findings | None


class FakeServer:
    """Federated averaging of one model over participants in this process.

    Args:
        model: the initial weights; float arrays, bfloat16 tensors as their bits (uint16).
        max_abs: the largest magnitude of an element of an update.
        encoding: how updates are written on the wire.
        window_s: the report window of each round.
        privacy: terms of the rounds.
        state: folder for participants' state directories; None: nothing is kept.
        frozen: names of tensors, with ``*`` and ``?``, that no round changes.
        seed: from which each task's ``seed`` is derived, with the round and the participant.
    """

    def __init__(
        self,
        model: Mapping[str, npt.NDArray[Any]],
        *,
        max_abs: float = 32.0,
        encoding: Encoding = Encoding.FLOAT32,
        window_s: float = 60.0,
        privacy: PrivacyTerms | None = None,
        state: Path | None = None,
        frozen: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        self._model = model_of(model)
        self._frozen = tuple(frozen)
        self._max_abs = max_abs
        self._encoding = encoding
        self._window_s = window_s
        self._privacy = privacy
        self._state = state
        self._seed = seed

    def run(
        self,
        *participants: Participant,
        rounds: int = 1,
        settings: Mapping[str, SettingValue] | None = None,
        policy: Policy | None = None,
        run_name: str = "test",
    ) -> FakeRun:
        """Run rounds with all participants, one after the other, in the caller's thread.

        Models are evaluated before training where a participant can, unless there are privacy terms. A second call
        continues from the model of the first.

        Args:
            participants: all of them take part in every round, unless they decline.
            rounds: number of rounds.
            settings: a job's ``[training]``; participants read it as ``task.settings``.
            policy: of every participant; None: it accepts everything.
            run_name: the name of the run, which policies may ask for.

        Returns:
            Each round's reports and refusals, and the model after the last round.

        Raises:
            TrainerError: for a failure that a real session would report; here it ends the test.
        """
        task = make_task(
            run_name=run_name,
            rounds_total=rounds,
            settings=Settings(settings),
            cohort_size=len(participants),
            max_abs=self._max_abs,
            encoding=self._encoding,
            model_bytes=self._model.layout.size_bytes,
            evaluate=self._privacy is None,
            privacy=self._privacy,
            frozen=self._frozen,
        )
        task = replace(task, ranges=_trained(self._model, task))
        played = []
        with TemporaryDirectory() if self._state is None else nullcontext(self._state) as state:
            members = members_of(participants, policy or Policy(), Path(state))
            for number in range(rounds):
                played.append(self._round(replace(task, key=RoundKey("rtest", number, 0)), members))
                self._model = self._averaged(played[-1].reports)
        return FakeRun(tuple(played), self._model)

    @staticmethod
    def statistics(
        query: StatisticsQuery,
        *participants: Participant,
        policy: Policy | None = None,
        privacy: PrivacyTerms | None = None,
        state: Path | None = None,
        run_name: str = "test",
    ) -> FakeStatistics:
        """Find statistics of the participants' tables; no model is needed.

        Args:
            query: a job's ``[statistics]``.
            participants: all of them; each must answer each round.
            policy: of every participant; None: it accepts everything.
            privacy: terms of the rounds, for a query with bounds; no noise is added to the figures.
            state: as in ``run``; None: nothing is kept.
            run_name: the name of the run, which policies may ask for.

        Returns:
            Each round's answers and refusals, and the figures that the last round released.

        Raises:
            PublicError: for a table that cannot answer.
            AnswersError: if tables change between rounds, or the sums cannot come from tables.
        """
        tensors, played = first_state(query), []
        task = make_task(
            run_name=run_name,
            kind=TaskKind.STATISTICS,
            statistics=query,
            rounds_total=query.rounds,
            cohort_size=len(participants),
            max_abs=2.0**40 if query.noised is not None else MAX_ABS,
            encoding=Encoding.FLOAT64,
            privacy=privacy,
        )
        with TemporaryDirectory() if state is None else nullcontext(state) as folder:
            members = members_of(participants, policy or Policy(), Path(folder))
            for number in range(query.rounds):
                key = RoundKey("rtest", number, 0)
                played.append(_asked(replace(task, key=key), model_of(tensors), members))
                if played[-1].declined or not members:
                    return FakeStatistics(tuple(played), None)
                tensors = _released(query, number, tensors, played[-1].reports)
        return FakeStatistics(tuple(played), Findings.of(query, tensors))

    def evaluate(self, participant: Participant, settings: Mapping[str, SettingValue] | None = None) -> Evaluation:
        """Ask one participant to evaluate the current model.

        Raises:
            UpdateError: if its result would be refused.
        """
        evaluation = participant.evaluate(self._model, make_task(kind=TaskKind.EVALUATE, settings=Settings(settings)))
        check_evaluation(evaluation)
        return evaluation

    def _round(self, task: Task, members: tuple[Member, ...]) -> FakeRound:
        reports, declined = [], []
        for member in members:
            control = TaskControl(self._window_s)
            seed = task_seed(self._seed, task.round, f"p{member.index}")
            mine = replace(task, control=control, max_weight=declared_examples(member.participant), seed=seed)
            decision = member.decide(mine)
            if not decision.accepted:
                declined.append((member.index, decision.reason))
                continue
            control.arm(reserve_s=0.0)
            try:
                reports.append(self._report(member, mine))
            finally:
                control.disarm()
        return FakeRound(task.round, tuple(reports), tuple(declined))

    def _report(self, member: Member, task: Task) -> FakeReport:
        evaluation: Mapping[str, float] = {}
        participant, model = member.participant, self._model
        if task.evaluate and participant.can_evaluate and member.protection.evaluates(task):
            found = participant.evaluate(model, task)
            check_evaluation(found)
            evaluation = finite_metrics(found.metrics)
        declared = declared_examples(participant)
        return _reported(member, model, task, lambda: participant.fit(model, task), declared, evaluation)

    def _averaged(self, reports: tuple[FakeReport, ...]) -> Model:
        if not reports:
            return self._model
        total = sum(report.weight for report in reports)
        mean = sum(report.update * (report.weight / total) for report in reports)
        return model_of(dict(_moved(self._model, np.asarray(mean))))


def _asked(task: Task, model: Model, members: tuple[Member, ...]) -> FakeRound:
    """The answers to one round of statistics."""
    reports, declined = [], []
    for member in members:
        decision = member.decide(task)
        if not decision.accepted:
            declined.append((member.index, decision.reason))
            continue
        reports.append(_reported(member, model, task, partial(answer, member.participant, model, task), 1, {}))
    return FakeRound(task.round, tuple(reports), tuple(declined))


def _reported(
    member: Member,
    model: Model,
    task: Task,
    work: Callable[[], Update],
    declared: int,
    evaluation: Mapping[str, float],
) -> FakeReport:
    """The report of one participant, which works in this call."""
    member.protection.charge(task)
    started = now_s()
    update = work()
    seconds = now_s() - started
    check_update(update, model.layout, task)
    sent = member.protection.outgoing(model, update, task, declared)
    elements = received(sent, task, model.layout.size)
    return FakeReport(member.index, sent.weight, sent.partial, seconds, sent.metrics, evaluation, elements)


def _released(
    query: StatisticsQuery, number: int, tensors: Mapping[str, Floats], reports: tuple[FakeReport, ...]
) -> dict[str, Floats]:
    """The model after a round of statistics, as a server releases it."""
    mean = np.asarray(sum(report.update for report in reports)) / len(reports)
    after = {name: np.array(tensor) for name, tensor in _moved(model_of(tensors), mean)}
    if query.noised is None:
        Disclosure(query).apply(number, after, len(reports))
    else:
        release_noised(after, len(reports), len(reports), noise=0.0)
    return after


def make_task(**fields: Any) -> Task:
    """A task for tests; ``fields`` override its defaults (see ``Task``), ``remaining_s`` sets the deadline."""
    defaults: dict[str, Any] = {
        "key": RoundKey("rtest", 0, 0),
        "run_name": "test",
        "kind": TaskKind.TRAIN,
        "rounds_total": 1,
        "settings": Settings(),
        "cohort_size": 1,
        "max_weight": 2**62,
        "max_abs": 32.0,
        "control": TaskControl(fields.pop("remaining_s", 60.0)),
    }
    return Task(**(defaults | fields))


def model_of(arrays: Mapping[str, npt.ArrayLike]) -> Model:
    """A model from arrays: float32, float64, float16, bfloat16, or uint16 for the bits of bfloat16.

    Raises:
        LayoutError: a ``ValueError``, for arrays of other element types.
    """
    found = NamedArrays.of(arrays)
    return Model(found.layout, b"".join(found.pieces()))


def _trained(model: Model, task: Task) -> tuple[ElementRange, ...]:
    """The elements of the tensors that the task does not freeze; empty for all."""
    spans = [span for span in model.layout.spans if not task.is_frozen(span.spec.name)]
    if len(spans) == len(model.layout.spans):
        return ()
    return tuple(ElementRange.run(span.start, span.stop - span.start) for span in spans)


def _moved(model: Model, mean: npt.NDArray[np.float64]) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Each tensor of the model plus its part of the mean, in its own element type."""
    for span in model.layout.spans:
        name, dtype = span.spec.name, span.spec.dtype
        wide = model[name] if dtype is Dtype.FLOAT64 else as_float32(model[name], dtype)
        moved = wide + mean[span.start : span.stop].reshape(span.spec.shape)
        if dtype is Dtype.BFLOAT16:
            yield name, float32_to_bfloat16(moved.astype(np.float32))
        else:
            yield name, np.asarray(moved, dtype=dtype.storage)
