"""One rank of a silo in a federation, from round to round.

DiLoCo (Douillard et al. 2023), algorithm 1, with the server as outer optimiser: weights come from the server at the
beginning of each round; the inner optimiser's states stay in the silo and carry over. No rank ever holds more of the
model than its own part, and the ranks transfer in parallel. See ``exchange`` for one round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.client import ClientError, TrainerError
from atoll.client.control import TaskControl
from atoll.client.silo import TaskTransfers, TransferCalls
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.federation.current_round import CurrentRound
from atoll.datacenter.federation.exchange import Exchange, tried
from atoll.datacenter.federation.match import check_layout
from atoll.datacenter.federation.orders import LOOK_S, Order, Orders, RoundError
from atoll.datacenter.federation.residuals import FOLDER, Residuals
from atoll.datacenter.federation.round import Round
from atoll.datacenter.federation.session_thread import Handover, SessionThread
from atoll.datacenter.job.federation import INNER_STEPS

if TYPE_CHECKING:
    from atoll.client import Limits
    from atoll.client.silo import Endpoint
    from atoll.datacenter.federation.spending import Spending
    from atoll.datacenter.job.federation import FederationSection
    from atoll.datacenter.models.spec import ModelSpec
    from atoll.datacenter.train.trainer import Trainer

log = logging.getLogger(__name__)

STOPPED = "the silo was asked to stop"
CURRENT_ROUND = "federation"
"""Name in a checkpoint."""


class Silo:
    """One rank's part of a silo. Collective: every rank creates and runs one.

    Args:
        trainer: trainer of the job, from ``open_trainer``.
        spec: spec of its model.
        orders: communication between the ranks.
        session_thread: session of rank 0; None on the other ranks.
        endpoint: returns the server's endpoint; called for each round, as certificates are renewed.
        limits: limits of transfers.
        scratch: folder for the model that a round starts from and, without checkpoints, for rounding errors.
        spending: account of a private job, on rank 0; None on the other ranks.

    Raises:
        ValueError: for a private job without an account on rank 0.
    """

    def __init__(
        self,
        trainer: Trainer,
        spec: ModelSpec,
        orders: Orders,
        session_thread: SessionThread | None,
        endpoint: Callable[[], Endpoint],
        limits: Limits,
        scratch: Path,
        spending: Spending | None = None,
    ) -> None:
        if trainer.mechanism is not None and session_thread is not None and spending is None:
            raise ValueError("a private job needs its ledger on the rank that talks to the server")
        self._trainer, self._spec, self._orders, self._session_thread = trainer, spec, orders, session_thread
        self._spending = spending
        self._endpoint, self._limits = endpoint, limits
        self._calls: TransferCalls | None = None
        self._number = 0
        current, kept = CurrentRound(), trainer.checkpoints.folder
        trainer.state.stateful[CURRENT_ROUND] = current
        residuals = Residuals(None if kept is None else kept / FOLDER, trainer.world.rank, scratch)
        self._exchange = Exchange(trainer, orders, current, residuals, scratch)

    def run(self) -> None:
        """Take part until the session ends or a stop is requested; then write a last checkpoint.

        If a stop is requested in a round, the checkpoint keeps its steps, and the server keeps waiting for the silo:
        after a restart it is invited to the round again and continues it. Without checkpoints the work of the round is
        lost, so the task is reported as failed.
        """
        trainer = self._trainer
        trainer.checkpoints.resume(trainer.state)
        if self._spending is not None:
            self._spending.check(trainer.state.step)
        try:
            coming = self._coming()
            while coming is not None:
                coming = self._round(coming)
            returns = trainer.checkpoints.folder is not None and trainer.pulse.stopping()
            if self._session_thread is not None and not returns:
                self._session_thread.stop(STOPPED)  # before the checkpoint: the server must not wait for that
            if trainer.state.step:
                trainer.checkpoints.save(trainer.state.step, trainer.state)
            if self._session_thread is not None and returns:  # connected until now: from here on the silo is silent
                self._session_thread.leave(STOPPED)
        finally:
            self._exchange.close()
            if self._calls is not None:
                self._calls.close()

    def _coming(self) -> Round | None:
        """Return the next round that could be fetched; None if there are no more."""
        while (coming := self._next()) is not None:
            if self._goes_well(coming, partial(self._receive, coming)):
                return coming
        return None

    def _receive(self, coming: Round) -> None:
        """Fetch the model; if its layout differs from the last one, the training thread must arrange it first."""
        known = self._exchange.knows(coming.order.layout)
        self._orders.agree(coming.order, "accepted", tried(partial(self._check, coming.order, known=known)))
        if known:
            self._exchange.fetch(coming)

    def _check(self, order: Order, *, known: bool) -> None:
        """Check that this silo can run a round, with the same result on every rank; a known layout fits the model."""
        check_steps(order, self._trainer.job.federation)
        if not known:
            check_layout(order.layout, self._spec)

    def _next(self) -> Round | None:
        if self._session_thread is None:
            order = self._orders.take()
            return None if order is None else self._opened(order, None)
        while (handover := self._session_thread.next(self._trainer.pulse.stopping, LOOK_S)) is not None:
            try:
                order = self._order(handover)
            except ClientError as error:  # the settings are invalid
                handover.delivered.put(error)
                continue
            self._number += 1
            self._orders.give(order)
            return self._opened(order, handover)
        self._orders.give(None)
        return None

    def _opened(self, order: Order, handover: Handover | None) -> Round:
        control = TaskControl(order.remaining_s) if handover is None else handover.invitation.task.control
        link = TaskTransfers(self._connected(order), self._limits, control, order.chunk_bytes, order.traceparent)
        opened = Round(order, link, handover)
        opened.until_ended.enter_context(self._orders.abandoning(order, control))
        return opened

    def _round(self, now: Round) -> Round | None:
        """Run a round, and return the next one."""
        if not self._goes_well(now, partial(self._perform, now)):
            return self._coming()
        self._trainer.pulse.enter(self._trainer.state.step, "sending, and waiting for a round")
        return self._beside(partial(self._finish, now))

    def _perform(self, now: Round) -> None:
        """Fetch, begin and train; prepare what is sent."""
        order = now.order
        self._trainer.pulse.enter(self._trainer.state.step, "fetching")
        if now.fetched_s is None:
            self._exchange.arrange(order)
            self._exchange.fetch(now)
        self._exchange.begin(order)
        with self._paid(now):
            now.trained = self._exchange.train(order, now.handover, now.fetched_s or 0.0)
        now.difference = self._exchange.difference(order)
        self._exchange.clip(order, now.difference)
        self._exchange.hold(now)

    @contextmanager
    def _paid(self, now: Round) -> Iterator[None]:
        """Charge the inner steps of a private job before they run; afterwards refund those that did not run.

        Raises:
            RoundError: on every rank, if the limit does not allow them, or the ledger cannot be written.
        """
        state, steps = self._trainer.state, self._exchange.left(now.order)
        if self._trainer.mechanism is None or not steps:
            yield
            return
        first = state.step
        self._orders.agree(now.order, "charged", tried(partial(self._charge, now, steps)))
        try:
            yield
        except RoundError:  # ended between two steps; after any other error the number of steps that ran is unknown
            self._settle(now, steps, state.step - first)
            raise
        self._settle(now, steps, state.step - first)

    def _charge(self, now: Round, steps: int) -> None:
        if self._spending is not None and now.handover is not None:
            self._spending.charge(now.handover.invitation.task, steps)

    def _settle(self, now: Round, steps: int, made: int) -> None:
        if self._spending is not None and now.handover is not None:
            self._spending.settle(now.handover.invitation.task, steps, made)

    def _finish(self, now: Round) -> Round | None:
        """Send, wait for the next round, and fetch it."""
        if self._goes_well(now, partial(self._exchange.send, now)):
            self._end(now)
        return self._coming()

    def _beside(self, rest: Callable[[], Round | None]) -> Round | None:
        """Run steps of the next round, if the job allows it, while the rest of this one is done."""
        steps, trainer = self._trainer.job.federation.overlap_steps, self._trainer
        if not steps:
            return rest()
        thread = ThreadPoolExecutor(1, "exchange")
        try:
            coming = thread.submit(rest)
            for _ in range(steps):
                trainer.queue()
                if trainer.pulse.stops_after(trainer.state.step):
                    break
            trainer.settle()
            while not wait([coming], LOOK_S).done:
                trainer.pulse.stopping()  # publishes the request, which the thread may not do while steps run
            return coming.result()
        finally:
            thread.shutdown(wait=False)  # a rank whose step failed ends without waiting for the next round

    def _goes_well(self, now: Round, work: Callable[[], object]) -> bool:
        """Do work that all ranks may abandon together; the server gets the reason, and the silo continues."""
        try:
            work()
        except (RoundError, LayoutError) as error:
            if now.handover is None:
                log.warning("%s abandoned: %s", now.order.key, error)
            elif not self._trainer.pulse.stopping():  # a stop ends the session, see ``run``
                public = error.public if isinstance(error, RoundError) else str(error)
                now.handover.delivered.put(TrainerError(str(error), public=public))
            self._end(now)
            return False
        return True

    def _end(self, now: Round) -> None:
        if now.handover is not None:
            self._orders.end(now.order)
        now.until_ended.close()

    def _order(self, handover: Handover) -> Order:
        task, model = handover.invitation.task, handover.invitation.model
        section: FederationSection = self._trainer.job.federation
        return Order(
            number=self._number + 1,
            key=task.key,
            layout=model.layout,
            blob=model.blob,
            content=model.content,
            encoding=task.encoding,
            max_abs=task.max_abs,
            ranges=task.ranges,
            remaining_s=task.remaining_s,
            upload_id=handover.upload_id,
            address=handover.address,
            chunk_bytes=handover.chunk_bytes,
            inner_steps=task.settings.integer(INNER_STEPS, section.inner_steps),
            clip_norm=None if task.privacy is None else task.privacy.clip_norm,
            traceparent=task.traceparent,
            counted=handover.counted,
        )

    def _connected(self, order: Order) -> TransferCalls:
        endpoint = self._endpoint().at(order.address)
        if self._calls is None:
            self._calls = TransferCalls(endpoint)
        elif self._calls.endpoint != endpoint:
            self._calls.renew(endpoint)
        return self._calls


def check_steps(order: Order, section: FederationSection) -> None:
    """Check that the job allows this number of inner steps.

    Raises:
        LayoutError: if it does not.
    """
    most, least = section.most_inner_steps, section.overlap_steps + 1
    if not least <= order.inner_steps <= most:
        raise LayoutError(
            f"the server asks for {order.inner_steps} inner steps; this job allows {least} to {most} "
            "(federation.overlap_steps, federation.max_inner_steps)"
        )
