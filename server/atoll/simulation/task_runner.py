"""Where participants work: their objects, their tasks, and the sum of what they send.

A runner does what a client and an ingest node do between the invitation and the partial sum, with the code of both.
The SDK makes and encodes the update (``atoll.client.in_process``). The server's kernels inspect it as on arrival and
add it to the integer accumulator of its round at once, so that no update outlives its task.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from pathlib import Path
from typing import Any

import numpy.typing as npt

from atoll.client import Model, Participant, Policy
from atoll.client.errors import TrainerError
from atoll.client.in_process import Completed, Order, Performer, Pieces, declared_examples
from atoll.server.aggregation import Accumulator, Inspection, RejectedUpdateError, inspect
from atoll.server.disk.file_locks import share
from atoll.server.ingest.node import FoldItem, SumKey
from atoll.server.rounds.weights import integer_weight
from atoll.simulation.batching import AlreadyTrained, Trained, trained_together
from atoll.simulation.errors import SetupError, SimulationError
from atoll.simulation.resuming.participant_folders import ParticipantFolders
from atoll.simulation.tasks import Facts, Opening, Outcome, RoundOverError, TaskRequest
from atoll.wire.chunks import ChunkHeader
from atoll.wire.digest import DEFAULT_CHUNK_BYTES

log = logging.getLogger(__name__)

Make = Callable[[int | str], Participant]
"""Makes a participant, from its number in the population, or from its name if the population is named."""
KEEP_PARTICIPANTS = 4096
"""Participants' objects that a runner keeps; the one used longest ago is closed first, and made again when drawn."""


@dataclass(frozen=True, slots=True)
class _Round:
    opening: Opening
    order: Order
    model: Model
    mapped: _Mapped | None


class TaskRunner:
    """One process's participants and sums.

    Args:
        make: makes a participant.
        policy: what may be sent.
        folders: of the participants that keep files; None where they cannot have any.
        keep: participants' objects that are kept.
    """

    def __init__(
        self, make: Make, policy: Policy | None, folders: ParticipantFolders | None, keep: int = KEEP_PARTICIPANTS
    ) -> None:
        self._make = make
        self._folders = folders
        self._keep = keep
        self._performer = Performer(policy, chunk_bytes=DEFAULT_CHUNK_BYTES)
        self._participants: OrderedDict[str, Participant] = OrderedDict()
        self._rounds: dict[tuple[str, int, int], _Round] = {}
        self._sums: dict[tuple[str, int, int], Accumulator] = {}
        self._kept: dict[tuple[str, int, int, str], tuple[Pieces, float]] = {}
        self._spare: Accumulator | None = None
        self._ahead: dict[tuple[tuple[str, int, int], str], Trained] = {}

    def facts(self, participant: str, seed: int | str) -> Facts:
        """What a participant declares."""
        with self._participant(participant, seed) as found:
            return Facts(declared_examples(found), found.can_evaluate)

    def open(self, opening: Opening, model: memoryview | None = None) -> None:
        """A round's tasks come next; sums of earlier rounds of the run are released, so their memory serves again.

        ``model`` begins with the model's bytes where its file is on another machine.
        """
        run, *attempt = opening.key
        self._drop_sums(run, lambda before: before < tuple(attempt))
        order = Order.of(opening.shared)
        mapped = None if order.content or model is not None else _Mapped(opening.model)
        found = mapped.bytes if mapped is not None else model
        buffer = memoryview(order.content) if order.content or found is None else found[: order.layout.size_bytes]
        self._rounds[opening.key] = _Round(opening, order, Model(order.layout, buffer), mapped)

    def train_together(self, key: tuple[str, int, int], requests: Sequence[TaskRequest]) -> None:
        """Train the participants of tasks that come next in one call of their class's ``fit_together``.

        Raises:
            SetupError: if they have none in common.
        """
        live = self._rounds[key]
        if live.opening.sum_key is None:
            return  # an evaluation trains nothing
        made = list[tuple[TaskRequest, Participant]]()
        with contextlib.ExitStack() as stack:
            for one in requests:
                with contextlib.suppress(Exception):  # it is raised again in the member's own task, as its failure
                    made.append((one, stack.enter_context(self._participant(one.participant, one.seed))))
            if not made:
                return
            tasks = [live.order.for_member(one.own).task for one, _ in made]
            trained = trained_together([member for _, member in made], live.model, tasks)
        self._ahead.update({(key, one.participant): ahead for (one, _), ahead in zip(made, trained, strict=True)})

    def work(self, key: tuple[str, int, int], request: TaskRequest) -> Outcome:
        """Do a task of an open round, and add its update to the round's sum.

        Raises:
            RoundOverError: if the round was dropped meanwhile.
        """
        began = time.perf_counter()
        live = self._rounds.get(key)
        if live is None:
            raise RoundOverError(f"round {key[1]}.{key[2]} of run {key[0]} is over")
        name, found = request.participant, list[Inspection]()
        ahead = self._ahead.pop((key, name), None)

        def look(header: ChunkHeader, payload: npt.NDArray[Any]) -> None:
            found.append(inspect(payload.data, header.encoding, header.range.size))

        try:
            with self._participant(name, request.seed) as participant:
                invitation = live.order.for_member(request.own)
                objection = self._performer.objection(participant, invitation)
                if objection is not None:
                    return Outcome(name, time.perf_counter() - began, declined=objection)
                worker = participant if ahead is None else AlreadyTrained(participant, ahead)
                completed = self._performer.perform(worker, invitation, live.model, look)
        except Exception as error:  # noqa: BLE001 - any error of the participant's code is that member's failure
            return self._failed(name, error, time.perf_counter() - began)
        if completed.pieces is None:
            return Outcome(name, time.perf_counter() - began, completed.report.SerializeToString())
        return self._received(live.opening, name, completed, completed.pieces, found, began)

    def _received(
        self,
        opening: Opening,
        name: str,
        completed: Completed,
        pieces: Pieces,
        found: Sequence[Inspection],
        began: float,
    ) -> Outcome:
        """The server's part: judge the update by what inspecting its chunks has found, and fold it."""
        squares = tuple(one.sum_squares for one in found)
        rejection = ""
        if opening.sum_key is None:
            rejection = "the round asks for no update"
        elif not all(one.finite and one.max_abs <= opening.policy.max_abs for one in found):
            rejection = f"values are not finite or beyond {opening.policy.max_abs:g}"
        elif opening.keep:
            pieces.hold()
            self._kept[*opening.key, name] = pieces, sqrt(fsum(squares))
        else:
            weight = integer_weight(
                opening.policy.counted_weight(completed.report.weight), opening.sum_key.grid.weight_shift
            )
            update_id = _update_id(opening.key, name, completed.report.digest)
            try:
                self._fold(opening.sum_key, update_id, weight, pieces, sqrt(fsum(squares)))
            except RejectedUpdateError as error:
                rejection = str(error.detail)
        report = completed.report.SerializeToString()
        return Outcome(name, time.perf_counter() - began, report, completed.payload_bytes, squares, rejection)

    def partial(self, key: SumKey, items: Sequence[FoldItem]) -> Accumulator:
        """The sum of exactly these updates.

        Raises:
            SimulationError: if the sum holds another one, or one of them is neither in it nor kept.
        """
        wanted = {item.update_id for item in items}
        found = self._sum(key)
        if found.updates - wanted:
            found.reset(key.grid, key.first, key.elements)
        for item in items:
            if item.update_id not in found.updates:
                kept = self._kept.get((item.run, item.round, item.attempt, item.participant))
                if kept is None:
                    raise SimulationError(f"update {item.update_id} is no longer here to be summed")
                self._fold(key, item.update_id, item.weight, *kept)
        return found

    def drop(self, run: str, through: tuple[int, int]) -> None:
        """Forget sums and tasks of a run's rounds up to this attempt."""
        self._drop_sums(run, lambda attempt: attempt <= through)
        for key in [key for key, live in self._rounds.items() if key[0] == run and live.opening.ends_with(through)]:
            del self._rounds[key]
            self._ahead = {at: ahead for at, ahead in self._ahead.items() if at[0] != key}

    def forget(self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]) -> None:
        """Forget the kept updates of these rounds, except those of the given (round, attempt, participant)."""
        self._kept = {
            upload: one
            for upload, one in self._kept.items()
            if upload[0] != run or upload[1:3] > through or upload[1:] in keep
        }

    def close(self) -> None:
        """Close every participant."""
        while self._participants:
            self._participants.popitem()[1].close()

    @contextlib.contextmanager
    def _participant(self, name: str, seed: int | str) -> Iterator[Participant]:
        """A participant at work. One that keeps files is made anew for each task: the next may be another process's."""
        found = self._participants.get(name)
        if found is not None:
            self._participants.move_to_end(name)
            yield found
            return
        found = self._made(seed)
        if type(found).prepare is not Participant.prepare:
            if self._folders is None:
                raise SetupError(
                    f"participants({seed!r}) gave a {type(found).__name__}, which keeps files (prepare); a folder "
                    "stays on one machine: use worker processes (workers=4), or keep nothing between tasks"
                )
            with contextlib.closing(found):
                found.prepare(self._folders.of(name))
                yield found
            return
        self._participants[name] = found
        if len(self._participants) > self._keep:
            self._participants.popitem(last=False)[1].close()
        yield found

    def _made(self, seed: int | str) -> Participant:
        try:
            found: object = self._make(seed)
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(at.filename).name}:{at.lineno}"
            raise SetupError(f"participants({seed!r}) raised {type(error).__name__}: {error} ({where})") from error
        if not isinstance(found, Participant):
            raise SetupError(
                f"participants({seed!r}) gave a {type(found).__name__}; return an atoll.client.Participant"
            )
        return found

    def _failed(self, name: str, error: Exception, seconds: float) -> Outcome:
        cause = error.__cause__ if isinstance(error, TrainerError) and error.__cause__ is not None else error
        text = "".join(traceback.format_exception(cause))
        failure = f"{type(error).__name__}: {self._performer.text_for_server(error)}"
        return Outcome(name, seconds, failure=failure, traceback=text)

    def _drop_sums(self, run: str, unwanted: Callable[[tuple[int, int]], bool]) -> None:
        for key in [key for key in self._sums if key[0] == run and unwanted(key[1:])]:
            self._spare = self._sums.pop(key)

    def _sum(self, key: SumKey) -> Accumulator:
        attempt = (key.run, key.round, key.attempt)
        found = self._sums.get(attempt)
        if found is None:
            spare, self._spare = self._spare, None
            if spare is not None and key.elements <= spare.room <= 2 * key.elements:
                spare.reset(key.grid, key.first, key.elements)
                found = spare
            else:
                found = Accumulator(key.elements, key.grid, key.first)
            self._sums[attempt] = found
        return found

    def _fold(self, key: SumKey, update_id: str, weight: int, pieces: Pieces, norm: float) -> None:
        self._sum(key).fold(update_id, weight, _Buffers(pieces), norm if key.grid.clip else 0.0, again=True)


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Chunks as an accumulator takes them."""

    pieces: Pieces

    def __iter__(self) -> Iterator[tuple[ChunkHeader, memoryview]]:
        return ((header, payload.data) for header, payload in self.pieces)


class _Mapped:
    """A model's file in memory, the same memory for every process that maps it; held against being written over."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if not share(self._descriptor, path):
            raise SimulationError(f"the model {path.name[:16]} was removed before its round began")
        self.bytes = memoryview(mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ))

    def __del__(self) -> None:
        os.close(self._descriptor)


def _update_id(key: tuple[str, int, int], participant: str, digest: str) -> str:
    return FoldItem(*key, participant, digest, 0).update_id
