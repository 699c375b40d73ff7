"""One rank of a silo in a federation: from round to round.

DiLoCo (Douillard et al. 2023), algorithm 1, with the server as outer optimiser: weights come from the server at the
beginning of each round; the inner optimiser's states stay in the silo and go on. No rank ever holds more of the model
than its own part, and the ranks' transfers go side by side. See ``exchange`` for one round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.client.control import TaskControl
from atoll.client.transfer import TransferCalls, TransferLink
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.federation.desk import Handed, SiloDesk
from atoll.datacenter.federation.difference import Rounding
from atoll.datacenter.federation.exchange import Exchange
from atoll.datacenter.federation.match import check_layout
from atoll.datacenter.federation.orders import LOOK_S, Order, Orders, RoundError
from atoll.datacenter.federation.place import Place
from atoll.datacenter.job.federation import INNER_STEPS

if TYPE_CHECKING:
    from atoll.client import Limits
    from atoll.client.channel import Endpoint
    from atoll.datacenter.job.federation import FederationSection
    from atoll.datacenter.models.spec import ModelSpec
    from atoll.datacenter.train.trainer import Trainer

log = logging.getLogger(__name__)

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
        scratch: folder for this rank's file.
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
    ) -> None:
        self._trainer, self._spec, self._orders, self._desk = trainer, spec, orders, desk
        self._endpoint, self._limits = endpoint, limits
        self._calls: TransferCalls | None = None
        self._number = 0
        place, rounding = Place(), Rounding()
        trainer.state.places[PLACE], trainer.state.extras[ROUNDING] = place, rounding
        file = scratch / f"rank-{trainer.world.rank}.base"
        self._exchange = Exchange(trainer, orders, place, rounding, file)

    def run(self) -> None:
        """Take part until the session ends or somebody asks for a stop; then a last checkpoint."""
        trainer = self._trainer
        trainer.checkpoints.resume(trainer.state)
        try:
            while (given := self._next()) is not None:
                self._round(*given)
            if trainer.state.step:
                trainer.checkpoints.save(trainer.state.step, trainer.state)
        finally:
            self._exchange.close()
            if self._calls is not None:
                self._calls.close()

    def _next(self) -> tuple[Order, Handed | None] | None:
        """The next round; None if there are no more."""
        trainer = self._trainer
        trainer.pulse.enter(trainer.state.step, "waiting for a round")
        if self._desk is None:
            order = self._orders.take()
            return None if order is None else (order, None)
        handed = self._desk.next(trainer.pulse.stopping, LOOK_S)
        if handed is None:
            self._orders.give(None)
            return None
        self._number += 1
        order = self._order(handed)
        self._orders.give(order)
        return order, handed

    def _order(self, handed: Handed) -> Order:
        task, model = handed.invitation.task, handed.invitation.model
        section: FederationSection = self._trainer.job.federation
        return Order(
            number=self._number,
            key=task.key,
            layout=model.layout,
            blob=model.blob,
            content=model.content,
            encoding=task.encoding,
            max_abs=task.max_abs,
            remaining_s=task.remaining_s,
            upload_id=handed.upload_id,
            address=handed.address,
            chunk_bytes=handed.chunk_bytes,
            inner_steps=task.settings.integer(INNER_STEPS, section.inner_steps),
            traceparent=task.traceparent,
        )

    def _round(self, order: Order, handed: Handed | None) -> None:
        """Do one round; one that fails is given up by all ranks, and the server is told."""
        control = TaskControl(order.remaining_s) if handed is None else handed.invitation.task.control
        link = TransferLink(self._connected(order), self._limits, control, order.chunk_bytes, order.traceparent)
        try:
            with self._orders.abandoning(order, control):
                self._check(order)
                self._exchange.perform(order, link, handed)
        except (RoundError, LayoutError) as error:
            log.warning("%s is given up: %s", order.key, error)
            if handed is not None:
                handed.delivered.put(error)
        finally:
            if handed is not None:
                self._orders.end(order)

    def _check(self, order: Order) -> None:
        """The same on every rank.

        Raises:
            LayoutError: if the federation's model is not this job's, or more steps are wanted than it allows.
        """
        most = self._trainer.job.federation.max_inner_steps
        if not 1 <= order.inner_steps <= most:
            raise LayoutError(
                f"the server asks for {order.inner_steps} inner steps; federation.max_inner_steps allows 1 to {most}"
            )
        check_layout(order.layout, self._spec)

    def _connected(self, order: Order) -> TransferCalls:
        endpoint = self._endpoint().at(order.address)
        if self._calls is None:
            self._calls = TransferCalls(endpoint)
        elif self._calls.endpoint != endpoint:
            self._calls.renew(endpoint)
        return self._calls
