"""This rank's part in recovery in place: what the trainer and the step use.

Two threads run beside the trainer's: one reads the coordinator's messages, the other sums. A late group therefore still
takes part in every sum, with zeros or with a gradient that another group has computed for it. When its own pass has
ended, it finds the means of the steps that it missed.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from atoll.datacenter.elastic.ending import end_rank
from atoll.datacenter.elastic.replicas.attendance import Attendance, Mean, attendance_of
from atoll.datacenter.elastic.replicas.average import Averager, Flat, flats_of
from atoll.datacenter.elastic.replicas.healing import receive_state, send_state
from atoll.datacenter.elastic.replicas.link import Link, Ticket
from atoll.datacenter.elastic.replicas.messages import (
    NO_STATE,
    Arrive,
    AskStop,
    Begin,
    Behind,
    Decision,
    Heal,
    Join,
    Leave,
    Over,
    Quorum,
    Speculate,
    ToRank,
    Vote,
)
from atoll.datacenter.errors import LostPeerError, TrainingError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from atoll.datacenter.checkpoint.state import TrainingState
    from atoll.datacenter.mesh import World

log = logging.getLogger(__name__)


RunFor: TypeAlias = Callable[[int], tuple[int, float] | None]
"""Computes the gradient of a late group's micro-batches: see ``Member.average``."""


class BehindError(TrainingError):
    """This group has missed too many steps to catch up with their means: it has to ``enter`` again."""


class OverError(TrainingError):
    """The job has ended without this group."""


class Member:
    """One rank of a replica group; a context manager.

    Args:
        ticket: the launcher's ticket.
        world: world of the group's ranks.
        timeout_s: limit of a sum.
        entered: called with step and phase.

    Attributes:
        group: number of the group.
        groups: number of groups.
        resumes: whether the group continues from the last checkpoint, without a live group's state.
        leads: whether this group writes records and checkpoints of the step just finished.
        stops: whether the job ends with the step just finished.
    """

    def __init__(
        self, ticket: Ticket, world: World, timeout_s: float, entered: Callable[[int, str], None] | None = None
    ) -> None:
        self.group, self.groups, self.resumes = ticket.group, ticket.groups, ticket.resumes
        self._world, self._timeout_s, self._entered = world, timeout_s, entered or (lambda _step, _phase: None)
        timeout = timedelta(seconds=timeout_s)
        connect = partial(TCPStore, ticket.host, ticket.store_port, is_master=False, timeout=timeout)
        self._store: Store = connect(wait_for_workers=False)
        self._heals: Store = connect(wait_for_workers=False)  # two threads, neither waits for the other's requests
        self.leads = self.stops = False
        self._asked = False
        self._arrivals: dict[int, Arrive] = {}
        """This rank's reports about the gradients that it holds, by the group whose micro-batches they are from."""
        self._asked_for: Speculate | None = None
        self._flats: list[Flat] = []
        self._averager: Averager | None = None
        self._heal: Heal | None = None
        self._attended: list[Mean] = []
        self._changed = threading.Condition()
        self._messages: deque[ToRank | None] = deque()
        self._means: dict[int, Mean] = {}
        self._orders: deque[Begin | Behind | Over] = deque()
        self._gone = False
        self._thread = threading.Thread(target=self._run, name="mean over groups", daemon=True)
        self._link = Link(ticket, world.rank, self._heard, self._closed)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, OverError):
            self._link.send(Leave())
        with self._changed:
            self._messages.append(None)
            self._changed.notify_all()
        if self._averager is not None:
            self._averager.abort()
        self._link.close()
        if error is None:
            self._thread.join()

    def enter(self, state: TrainingState) -> None:
        """Take part from the next step on, with the state of a live group unless this group has its own. Collective.

        Raises:
            OverError: if the job has ended meanwhile.
            LostPeerError: if the launcher has given this group up, or is gone.
        """
        if not self._flats:
            self._flats = flats_of([one for part in state.parts for one in part.parameters()])
            self._averager = Averager(self._flats, self.group, self._world.rank, self._store, self._timeout_s)
        step = state.step if self.resumes else NO_STATE
        self.resumes = False
        while True:
            begin = self._join(step)
            if begin.heal is None or self.group not in begin.heal.targets:
                break
            self._entered(begin.step, "healing")
            if self._received(state, begin.heal):
                break
            step = NO_STATE
        self.leads = begin.leader == self.group
        self._serve(state, begin.heal)

    def average(self, step: int, tokens: int, loss: float, run_for: RunFor) -> Mean:
        """Replace the gradients by the mean over the groups that are in this step, and return that mean.

        Args:
            step: number of the step, from 0.
            tokens: tokens that this group counted.
            loss: mean over these tokens.
            run_for: called with the number of a late group if this group is also to compute that group's gradient. It
                replaces the parameters' gradients, and returns tokens and loss; None if ``is_made`` stopped it.

        Raises:
            BehindError: if this group takes part in no further step before it has entered again.
            LostPeerError: if the launcher has given this group up, or is gone.
        """
        self._entered(step + 1, "reduction")
        self._arrive(self.group, Arrive(step, tokens, loss))
        while not isinstance(found := self._wait_for_mean(step), Mean):
            self._entered(step + 1, "speculation")
            if (figures := run_for(found.share)) is not None:
                self._arrive(found.share, Arrive(step, *figures, share=found.share))
            self._entered(step + 1, "reduction")
        self._use(found)
        self._entered(step + 1, "optimiser")
        return found

    def missed(self, step: int) -> Mean | None:
        """Replace the gradients by the mean of a step that was made without this group, and return it. Collective.

        Returns:
            None if the step waits for this group, or at least one of the group's ranks has not got the mean yet.
        """
        if not self.is_made(step):
            return None
        with self._changed:
            mean = self._means[step]
        self._use(mean)
        return mean

    def is_made(self, step: int) -> bool:
        """Return whether every rank of this group has the mean of a step. Collective."""
        with self._changed:
            here = step in self._means
        return self._agreed(good=here)

    def after_step(self, state: TrainingState) -> None:
        """Send the state to groups that come back after this step."""
        heal, self._heal = self._heal, None
        self._serve(state, heal)

    def ask_stop(self) -> None:
        """Ask all groups to stop after the next step."""
        if not self._asked:
            self._asked = True
            self._link.send(AskStop())

    def take_attendance(self) -> Attendance | None:
        """Return who was in the steps since the last call; None if there was none."""
        if not (means := self._attended):
            return None
        self._attended = []
        return attendance_of(means, self.groups)

    def _join(self, step: int) -> Begin:
        self._entered(max(0, step), "joining")
        with self._changed:
            self._orders.clear()
            self._means.clear()
            self._arrivals.clear()
            self._asked_for = None
        self._link.send(Join(step))
        with self._changed:
            self._changed.wait_for(lambda: self._gone or self._orders)
            order = self._orders.popleft() if self._orders else None
        if isinstance(order, Begin):
            return order
        if isinstance(order, Over):
            raise OverError("the job has ended without this replica group")
        raise self._lost()

    def _received(self, state: TrainingState, heal: Heal) -> bool:
        """Receive a state; return whether every rank of the group has it."""
        good = True
        try:
            receive_state(state, heal, self.group, self._world.rank, self._heals)
        except RuntimeError as error:
            log.warning("the state of replica group %d did not arrive: %s", heal.source, error)
            good = False
        return self._agreed(good=good)

    def _serve(self, state: TrainingState, heal: Heal | None) -> None:
        if heal is None or heal.source != self.group:
            return
        for target in heal.targets:
            self._entered(state.step, "sending state")
            try:
                send_state(state, heal, target, self._world.rank, self._heals)
            except RuntimeError as error:  # that group comes again, to any live group
                log.warning("replica group %d did not take the state: %s", target, error)

    def _agreed(self, *, good: bool) -> bool:
        """Return whether this holds on every rank of this group."""
        if self._world.size == 1:
            return good
        flag = torch.tensor(int(good), device=self._world.device)
        dist.all_reduce(flag, dist.ReduceOp.MIN)
        return bool(flag.item())

    def _arrive(self, share: int, message: Arrive) -> None:
        with self._changed:
            self._arrivals[share] = message
        self._link.send(message)

    def _wait_for_mean(self, step: int) -> Mean | Speculate:
        """Return an order to speculate if there is one, else the mean: so all ranks of this group do the same."""
        with self._changed:
            self._changed.wait_for(lambda: self._gone or step in self._means or self._orders or self._asked_for)
            if (order := self._asked_for) is not None:
                self._asked_for = None
                return order
            if (mean := self._means.get(step)) is not None:
                return mean
            if self._gone:
                raise self._lost()
            raise BehindError(f"step {step + 1} and earlier ones were made without this replica group")

    def _use(self, mean: Mean) -> None:
        with self._changed:
            for old in [step for step in self._means if step <= mean.quorum.step]:
                del self._means[old]
            self._arrivals.clear()
        for flat, summed in zip(self._flats, mean.sums, strict=True):
            flat.apply(summed)
        decision = mean.decision
        self.leads, self.stops = decision.leader == self.group, decision.stop
        self._heal = decision.heal
        self._attended.append(Mean(mean.quorum, decision, ()))

    def _lost(self) -> LostPeerError:
        return LostPeerError("the launcher has given this replica group up, or is gone")

    def _heard(self, message: ToRank) -> None:
        if isinstance(message, Decision) and not message.commit and self._averager is not None:
            self._averager.abort(message.attempt)
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    def _closed(self) -> None:
        with self._changed:
            self._gone = True
            self._changed.notify_all()
        if self._averager is not None:
            self._averager.abort()

    def _run(self) -> None:
        try:
            pending: tuple[Quorum, Sequence[Tensor]] | None = None
            while (message := self._next()) is not None:
                match message:
                    case Quorum():
                        pending = self._summed(message)
                    case Speculate():
                        self._set_aside(message)
                    case Decision():
                        if message.commit and pending is not None:
                            self._keep(Mean(pending[0], message, pending[1]))
                        pending = None
                    case _:
                        self._add_order(message)
        except Exception as error:  # noqa: BLE001  # the trainer waits for this thread: the rank ends with any error
            end_rank(error)

    def _next(self) -> ToRank | None:
        with self._changed:
            self._changed.wait_for(lambda: self._messages)
            return self._messages.popleft()

    def _summed(self, quorum: Quorum) -> tuple[Quorum, Sequence[Tensor]] | None:
        averager = self._joined()
        holders = dict(quorum.held)
        with self._changed:
            said = dict(self._arrivals)
        mine = [one for one in quorum.contributors if holders.get(one, one) == self.group]
        weights = {one: said[one].tokens / max(1, quorum.tokens) for one in mine}
        try:
            sums = averager.sum(quorum, weights)
        except RuntimeError as error:
            log.info("the sum of step %d broke off: %s", quorum.step + 1, error)
            self._link.send(Vote(quorum.attempt, good=False))
            return None
        self._link.send(Vote(quorum.attempt, good=True))
        return quorum, sums

    def _joined(self) -> Averager:
        if self._averager is None:
            raise RuntimeError("the launcher has asked for a sum before this rank had joined")
        return self._averager

    def _set_aside(self, order: Speculate) -> None:
        """Keep this group's gradient for the sum, then let the trainer run another group's micro-batches."""
        self._joined().set_aside()
        with self._changed:
            self._asked_for = order
            self._changed.notify_all()

    def _keep(self, mean: Mean) -> None:
        self._joined().forget()
        with self._changed:
            self._means[mean.quorum.step] = mean
            self._changed.notify_all()

    def _add_order(self, message: Begin | Behind | Over) -> None:
        with self._changed:
            self._orders.append(message)
            self._changed.notify_all()
