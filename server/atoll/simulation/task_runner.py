"""Run participants' tasks in one process: their objects, their tasks, and the sum of their updates.

A runner does the work of a client and an ingest node between the invitation and the partial sum, with the code of both.
The SDK computes and encodes the update (``atoll.client.in_process``). The server's kernels inspect it as on arrival and
add it to the integer accumulator of its round at once, so that no update outlives its task.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import fsum, sqrt
from pathlib import Path
from typing import Any

import numpy.typing as npt

from atoll.client import Model, Participant, Policy
from atoll.client.errors import TrainerError
from atoll.client.in_process import Completed, Order, Performer, Pieces, declared_examples, users_traceback
from atoll.server.aggregation import Accumulator, Inspection, RejectedUpdateError, inspect
from atoll.server.disk.file_locks import share
from atoll.server.ingest.node import FoldItem, SumKey
from atoll.server.rounds.weights import integer_weight
from atoll.simulation.batching import AlreadyTrained, Trained, trained_together
from atoll.simulation.errors import SimulationError
from atoll.simulation.participant_objects import KEEP_PARTICIPANTS, Make, ParticipantObjects, keeps_files
from atoll.simulation.resuming.participant_folders import ParticipantFolders
from atoll.simulation.tasks import Facts, Opening, Outcome, RoundOverError, TaskRequest
from atoll.simulation.update_sums import UpdateSums
from atoll.wire.chunks import ChunkHeader
from atoll.wire.digest import DEFAULT_CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class _Round:
    opening: Opening
    order: Order
    model: Model
    mapped: _Mapped | None


class TaskRunner:
    """One process's participants and sums.

    Args:
        make: creates a participant.
        policy: what may be sent.
        folders: of the participants that keep files; None if that is not possible.
        keep: number of kept participant objects.
    """

    def __init__(
        self, make: Make, policy: Policy | None, folders: ParticipantFolders | None, keep: int = KEEP_PARTICIPANTS
    ) -> None:
        self._objects = ParticipantObjects(make, keep)
        self._folders = folders
        self._performer = Performer(policy, chunk_bytes=DEFAULT_CHUNK_BYTES)
        self._sums = UpdateSums()
        self._rounds: dict[tuple[str, int, int], _Round] = {}
        self._ahead: dict[tuple[tuple[str, int, int], str], Trained] = {}

    def facts(self, participant: str, seed: int | str) -> Facts:
        """A participant's declarations."""
        folders = self._folders
        folder = None if folders is None else lambda: folders.first(participant)
        with self._objects.used(participant, seed, folder) as found:
            return Facts(declared_examples(found), found.can_evaluate)

    def open(self, opening: Opening, model: memoryview | None = None) -> None:
        """Announce a round's tasks; sums of the run's earlier rounds are released, so their memory is reused.

        ``model`` begins with the model's bytes if its file is on another machine.
        """
        run, *attempt = opening.key
        self._sums.drop(run, lambda before: before < tuple(attempt))
        order = Order.of(opening.shared)
        mapped = None if order.content or model is not None else _Mapped(opening.model)
        found = mapped.bytes if mapped is not None else model
        buffer = memoryview(order.content) if order.content or found is None else found[: order.layout.size_bytes]
        self._rounds[opening.key] = _Round(opening, order, Model(order.layout, buffer), mapped)

    def train_together(self, key: tuple[str, int, int], requests: Sequence[TaskRequest]) -> None:
        """Train the participants of the next tasks in one call of their class's ``fit_together``.

        Raises:
            SetupError: if their classes have none in common.
        """
        live = self._rounds[key]
        if live.opening.sum_key is None:
            return  # an evaluation trains nothing
        made = list[tuple[TaskRequest, Participant]]()
        with contextlib.ExitStack() as stack:
            for one in requests:
                with contextlib.suppress(Exception):  # raised again in the member's own task, as its failure
                    used = self._objects.used(one.participant, one.seed, self._folder(one, begun=False))
                    made.append((one, stack.enter_context(used)))
            if not made:
                return
            tasks = [live.order.for_member(one.own).task for one, _ in made]
            trained = trained_together([member for _, member in made], live.model, tasks)
        self._ahead.update({(key, one.participant): ahead for (one, _), ahead in zip(made, trained, strict=True)})

    def work(self, key: tuple[str, int, int], request: TaskRequest) -> Outcome:
        """Run a task of an open round, and add its update to the round's sum.

        Raises:
            RoundOverError: if the round was dropped meanwhile.
        """
        began = time.perf_counter()
        live = self._rounds.get(key)
        if live is None:
            raise RoundOverError(f"round {key[1]}.{key[2]} of run {key[0]} is over")
        outcome = self._worked(live, request, self._ahead.pop((key, request.participant), None))
        return replace(outcome, seconds=time.perf_counter() - began)

    def _worked(self, live: _Round, request: TaskRequest, ahead: Trained | None) -> Outcome:
        """The outcome of a task."""
        name, found, keeps = request.participant, list[Inspection](), False

        def look(header: ChunkHeader, payload: npt.NDArray[Any]) -> None:
            found.append(inspect(payload.data, header.encoding, header.range.size))

        try:
            with self._objects.used(name, request.seed, self._folder(request, begun=ahead is not None)) as participant:
                keeps = keeps_files(participant)
                invitation = live.order.for_member(request.own)
                objection = self._performer.objection(participant, invitation)
                if objection is not None:
                    return Outcome(name, declined=objection, keeps_files=keeps)
                worker = participant if ahead is None else AlreadyTrained(participant, ahead)
                completed = self._performer.perform(worker, invitation, live.model, look)
        except Exception as error:  # noqa: BLE001 - any error of the participant's code is that member's failure
            return self._failed(name, error, keeps=keeps)
        pieces = completed.pieces
        return Outcome(
            name,
            report=completed.report.SerializeToString(),
            payload_bytes=completed.payload_bytes,
            squares=tuple(one.sum_squares for one in found),
            rejection="" if pieces is None else self._received(live.opening, name, completed, pieces, found),
            keeps_files=keeps,
        )

    def _received(
        self, opening: Opening, name: str, completed: Completed, pieces: Pieces, found: Sequence[Inspection]
    ) -> str:
        """The server's part: check the update by its inspected chunks and fold it; return the reason if refused."""
        norm = sqrt(fsum(one.sum_squares for one in found))
        if opening.sum_key is None:
            return "the round asks for no update"
        if not all(one.finite and one.max_abs <= opening.policy.max_abs for one in found):
            return f"values are not finite or beyond {opening.policy.max_abs:g}"
        if opening.keep:
            self._sums.keep(opening.key, name, pieces, norm)
            return ""
        weight = integer_weight(
            opening.policy.counted_weight(completed.report.weight), opening.sum_key.grid.weight_shift
        )
        update_id = FoldItem(*opening.key, name, completed.report.digest, 0).update_id
        try:
            self._sums.fold(opening.sum_key, update_id, weight, pieces, norm)
        except RejectedUpdateError as error:
            return str(error.detail)
        return ""

    def partial(self, key: SumKey, items: Sequence[FoldItem]) -> Accumulator:
        """The sum of exactly these updates. Raises as ``UpdateSums.partial``."""
        return self._sums.partial(key, items)

    def drop(self, run: str, through: tuple[int, int]) -> None:
        """Forget sums and tasks of a run's rounds up to this attempt."""
        self._sums.drop(run, lambda attempt: attempt <= through)
        for key in [key for key, live in self._rounds.items() if key[0] == run and live.opening.ends_with(through)]:
            del self._rounds[key]
            self._ahead = {at: ahead for at, ahead in self._ahead.items() if at[0] != key}

    def forget(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        """Forget the kept updates of these rounds, except those of the given (round, attempt, participant)."""
        self._sums.forget(run, through, keep)

    def close(self) -> None:
        """Close every participant."""
        self._objects.close()

    def _folder(self, request: TaskRequest, *, begun: bool) -> Callable[[], Path] | None:
        """A factory of a task's folder; a task that was begun before already has one."""
        folders = self._folders
        if folders is None:
            return None
        if begun:
            return lambda: folders.made(request.participant, request.after)
        return lambda: folders.copied(request.participant, request.before, request.after)

    def _failed(self, name: str, error: Exception, *, keeps: bool) -> Outcome:
        cause = error.__cause__ if isinstance(error, TrainerError) and error.__cause__ is not None else error
        frames = users_traceback(cause)
        lines = (
            traceback.format_exception(type(cause), cause, frames) if frames else traceback.format_exception_only(cause)
        )
        text = "".join(lines)
        failure = self._performer.text_for_server(error)
        return Outcome(name, failure=failure, traceback=text, keeps_files=keeps)


class _Mapped:
    """A model's file, mapped into memory shared by processes; locked against being overwritten."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if not share(self._descriptor, path):
            raise SimulationError(f"the model {path.name[:16]} was removed before its round began")
        self.bytes = memoryview(mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ))

    def __del__(self) -> None:
        os.close(self._descriptor)
