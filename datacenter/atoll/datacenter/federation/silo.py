"""One rank of a silo in a federation: from round to round.

DiLoCo (Douillard et al. 2023), algorithm 1, with the server as outer optimiser: weights come from the server at the
beginning of each round; the inner optimiser's states stay in the silo and go on. No rank ever holds more of the model
than its own part, and the ranks' transfers go side by side. See ``exchange`` for one round.
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
from atoll.client.transfer import TransferCalls, TransferLink
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.federation.desk import Handed, SiloDesk
from atoll.datacenter.federation.difference import Rounding
from atoll.datacenter.federation.exchange import Exchange, tried
from atoll.datacenter.federation.match import check_layout
from atoll.datacenter.federation.orders import LOOK_S, Order, Orders, RoundError
from atoll.datacenter.federation.place import Place
from atoll.datacenter.federation.round import Round
from atoll.datacenter.job.federation import INNER_STEPS

if TYPE_CHECKING:
    from atoll.client import Limits
    from atoll.client.channel import Endpoint
    from atoll.datacenter.federation.spending import Spending
    from atoll.datacenter.job.federation import FederationSection
    from atoll.datacenter.models.spec import ModelSpec
    from atoll.datacenter.train.trainer import Trainer

log = logging.getLogger(__name__)

STOPPED = "the silo was asked to stop"
PLACE, ROUNDING = "federation", "rounding"
"""Their names in a checkpoint."""


class Silo:
    """One rank's part. Collective: every rank makes one and runs it.

    Args:
        trainer: of the job, as ``open_trainer`` gives it.
        spec: of its model.
        orders: between the ranks.
        desk: rank 0's session; None on the others.
        endpoint: of the server; asked anew for each round, for certificates are renewed.
        limits: of transfers.
        scratch: folder for what a round starts from.
        spending: of a private job, on rank 0; None on the others.

    Raises:
        ValueError: for a private job that would be charged to nobody.
    """

    def __init__(
        self,
        trainer: Trainer,
        spec: ModelSpec,
        orders: Orders,
        desk: SiloDesk | None,
        endpoint: Callable[[], Endpoint],
        limits: Limits,
        scratch: Path,
        spending: Spending | None = None,
    ) -> None:
        if trainer.mechanism is not None and desk is not None and spending is None:
            raise ValueError("a private job needs its ledger on the rank that talks to the server")
        self._trainer, self._spec, self._orders, self._desk = trainer, spec, orders, desk
        self._spending = spending
        self._endpoint, self._limits = endpoint, limits
        self._calls: TransferCalls | None = None
        self._number = 0
        place, rounding = Place(), Rounding()
        trainer.state.places[PLACE], trainer.state.extras[ROUNDING] = place, rounding
        self._exchange = Exchange(trainer, orders, place, rounding, scratch)

    def run(self) -> None:
        """Take part until the session ends or somebody asks for a stop; then a last checkpoint."""
        trainer = self._trainer
        trainer.checkpoints.resume(trainer.state)
        if self._spending is not None:
            self._spending.check(trainer.state.step)
        try:
            coming = self._coming()
            while coming is not None:
                coming = self._round(coming)
            if self._desk is not None:  # before a checkpoint, which may take long: nobody shall wait for this silo
                self._desk.stop(STOPPED)
            if trainer.state.step:
                trainer.checkpoints.save(trainer.state.step, trainer.state)
        finally:
            self._exchange.close()
            if self._calls is not None:
                self._calls.close()

    def _coming(self) -> Round | None:
        """The next round that could be fetched; None if there are no more."""
        while (coming := self._next()) is not None:
            if self._goes_well(coming, partial(self._receive, coming)):
                return coming
        return None

    def _receive(self, coming: Round) -> None:
        """Fetch; but what is arranged otherwise than before, the training thread must arrange first."""
        known = self._exchange.knows(coming.order.layout)
        self._orders.agree(coming.order, "accepted", tried(partial(self._check, coming.order, known=known)))
        if known:
            self._exchange.fetch(coming)

    def _check(self, order: Order, *, known: bool) -> None:
        """Whether this silo can do a round, the same on every rank; a layout of a round before is this job's model."""
        check_steps(order, self._trainer.job.federation)
        if not known:
            check_layout(order.layout, self._spec)

    def _next(self) -> Round | None:
        if self._desk is None:
            order = self._orders.take()
            return None if order is None else self._opened(order, None)
        while (handed := self._desk.next(self._trainer.pulse.stopping, LOOK_S)) is not None:
            try:
                order = self._order(handed)
            except ClientError as error:  # settings that are none
                handed.delivered.put(error)
                continue
            self._number += 1
            self._orders.give(order)
            return self._opened(order, handed)
        self._orders.give(None)
        return None

    def _opened(self, order: Order, handed: Handed | None) -> Round:
        control = TaskControl(order.remaining_s) if handed is None else handed.invitation.task.control
        link = TransferLink(self._connected(order), self._limits, control, order.chunk_bytes, order.traceparent)
        opened = Round(order, link, handed)
        opened.until_ended.enter_context(self._orders.abandoning(order, control))
        return opened

    def _round(self, now: Round) -> Round | None:
        """Do a round; the next one."""
        if not self._goes_well(now, partial(self._perform, now)):
            return self._coming()
        self._trainer.pulse.enter(self._trainer.state.step, "sending, and waiting for a round")
        return self._beside(partial(self._finish, now))

    def _perform(self, now: Round) -> None:
        """Up to what is to be sent."""
        order = now.order
        self._trainer.pulse.enter(self._trainer.state.step, "fetching")
        if now.fetched_s is None:
            self._exchange.arrange(order)
            self._exchange.fetch(now)
        self._exchange.begin(order)
        with self._paid(now):
            now.trained = self._exchange.train(order, now.handed, now.fetched_s or 0.0)
        now.difference = self._exchange.difference(order)
        self._exchange.clip(order, now.difference)

    @contextmanager
    def _paid(self, now: Round) -> Iterator[None]:
        """Around the inner steps of a private job: charged before; those that were not made are taken off after.

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
        except RoundError:  # it ended between two steps; after any other error nobody knows what was made
            self._settle(now, steps, state.step - first)
            raise
        self._settle(now, steps, state.step - first)

    def _charge(self, now: Round, steps: int) -> None:
        if self._spending is not None and now.handed is not None:
            self._spending.charge(now.handed.invitation.task, steps)

    def _settle(self, now: Round, steps: int, made: int) -> None:
        if self._spending is not None and now.handed is not None:
            self._spending.settle(now.handed.invitation.task, steps, made)

    def _finish(self, now: Round) -> Round | None:
        """Send, wait for the next round, fetch it."""
        if self._goes_well(now, partial(self._exchange.send, now)):
            self._end(now)
        return self._coming()

    def _beside(self, rest: Callable[[], Round | None]) -> Round | None:
        """Make steps of the next round, if the job wants that, while the rest of this one is done."""
        steps, trainer = self._trainer.job.federation.overlap_steps, self._trainer
        if not steps:
            return rest()
        thread = ThreadPoolExecutor(1, "exchange")
        try:
            coming = thread.submit(rest)
            for _ in range(steps):
                trainer.advance()
                if trainer.pulse.stops_after(trainer.state.step):
                    break
            while not wait([coming], LOOK_S).done:
                trainer.pulse.stopping()  # tells the others, which the thread may not while steps are made
            return coming.result()
        finally:
            thread.shutdown(wait=False)  # a rank whose step has failed ends; it does not wait for the next round

    def _goes_well(self, now: Round, work: Callable[[], object]) -> bool:
        """Do something that all ranks may give up together: the server is told then, and the silo goes on."""
        try:
            work()
        except (RoundError, LayoutError) as error:
            if now.handed is None:
                log.warning("%s is given up: %s", now.order.key, error)
            elif not self._trainer.pulse.stopping():  # who is stopped tells the server so, for all that is under way
                public = error.public if isinstance(error, RoundError) else str(error)
                now.handed.delivered.put(TrainerError(str(error), public=public))
            self._end(now)
            return False
        return True

    def _end(self, now: Round) -> None:
        if now.handed is not None:
            self._orders.end(now.order)
        now.until_ended.close()

    def _order(self, handed: Handed) -> Order:
        task, model = handed.invitation.task, handed.invitation.model
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
            upload_id=handed.upload_id,
            address=handed.address,
            chunk_bytes=handed.chunk_bytes,
            inner_steps=task.settings.integer(INNER_STEPS, section.inner_steps),
            clip_norm=None if task.privacy is None else task.privacy.clip_norm,
            traceparent=task.traceparent,
        )

    def _connected(self, order: Order) -> TransferCalls:
        endpoint = self._endpoint().at(order.address)
        if self._calls is None:
            self._calls = TransferCalls(endpoint)
        elif self._calls.endpoint != endpoint:
            self._calls.renew(endpoint)
        return self._calls


def check_steps(order: Order, section: FederationSection) -> None:
    """Whether the job allows as many inner steps.

    Raises:
        LayoutError: if it does not.
    """
    most, least = section.most_inner_steps, section.overlap_steps + 1
    if not least <= order.inner_steps <= most:
        raise LayoutError(
            f"the server asks for {order.inner_steps} inner steps; this job allows {least} to {most} "
            "(federation.overlap_steps, federation.max_inner_steps)"
        )
