"""One round on one rank: fetch, load, train, send, report. Phases end when every rank has ended them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from atoll.client import ClientError
from atoll.client.clock import now_s
from atoll.client.session.work import INCOMPLETE, upload_reserve_s
from atoll.client.transfer import Abandoned, Shard, Uploading
from atoll.datacenter.checkpoint.state import MODEL
from atoll.datacenter.federation.base import Base
from atoll.datacenter.federation.desk import MAX_REPAIRS, Delivery
from atoll.datacenter.federation.difference import Difference
from atoll.datacenter.federation.orders import RoundError
from atoll.datacenter.federation.pieces import pieces_of
from atoll.wire.chunks import UploadKey, header_from_proto, header_to_proto
from atoll.wire.digest import BlobManifest
from atoll.wire.errors import WireError
from atoll.wire.v1 import transfer_pb2

if TYPE_CHECKING:
    from atoll.client.transfer import TransferLink
    from atoll.datacenter.federation.desk import Handed
    from atoll.datacenter.federation.difference import Rounding
    from atoll.datacenter.federation.orders import Order, Orders
    from atoll.datacenter.federation.place import Place
    from atoll.datacenter.train.trainer import Trainer
    from atoll.wire.chunks import ChunkHeader
    from atoll.wire.layout import Layout

COUNTED = "counted"
_FAILURES = (ClientError, WireError, Abandoned, OSError)
"""What ends a round on a rank, but not the silo."""


class Exchange:
    """Does rounds, one after another; keeps what they have in common.

    Args:
        trainer: of the job.
        orders: between the ranks.
        place: in the federation; changed.
        rounding: of updates; changed.
        file: where this rank keeps what a round starts from.
    """

    def __init__(self, trainer: Trainer, orders: Orders, place: Place, rounding: Rounding, file: Path) -> None:
        self._trainer, self._orders, self._place, self._rounding = trainer, orders, place, rounding
        self._file = file
        self._layout: Layout | None = None
        self._base: Base | None = None

    def close(self) -> None:
        """Remove the file."""
        if self._base is not None:
            self._base.close()

    def perform(self, order: Order, link: TransferLink, handed: Handed | None) -> None:
        """Do a round. Collective.

        Args:
            order: the round.
            link: for this rank's transfers.
            handed: what rank 0's session waits for.

        Raises:
            RoundError: on every rank, if it is given up.
        """
        base = self._base_of(order.layout)
        fetched = self._phase(order, "fetched", lambda: self._fetch(order, link, base))
        self._begin(order, base)
        trained = self._train(order, handed, fetched)
        self._send(order, link, handed, Difference(base, self._rounding, order.max_abs), trained)

    def _base_of(self, layout: Layout) -> Base:
        if self._base is None or self._layout != layout:
            self.close()
            state = {name.removeprefix(MODEL): tensor for name, tensor in self._trainer.state.model_tensors().items()}
            self._base = Base(self._file, pieces_of(state, layout, self._trainer.world.device))
            self._layout = layout
        return self._base

    def _phase(self, order: Order, name: str, work: Callable[[], object]) -> float:
        """Do something that may fail on one rank only; its seconds on this one."""
        self._trainer.pulse.enter(self._trainer.state.step, name)
        began = now_s()
        self._orders.agree(order, name, _tried(work))
        return now_s() - began

    def _fetch(self, order: Order, link: TransferLink, base: Base) -> None:
        """What this rank lacks of the model."""
        if not order.content:
            link.fetch_into(order.blob, order.layout.size_bytes, base)
            return
        manifest = BlobManifest.of_buffer(order.content)
        for number in base.lacks(manifest):
            first, stop = manifest.chunk_range(number)
            base.take(manifest, number, memoryview(order.content)[first:stop])

    @torch.no_grad()
    def _begin(self, order: Order, base: Base) -> None:
        """Take the global weights, unless a checkpoint has brought back weights from the midst of this very round."""
        state = self._trainer.state
        if self._place.run and self._place.key == order.key:
            return
        for index, piece in enumerate(base.pieces):
            piece.local.copy_(base.of(index).view(piece.local.shape))
        self._place.begin(order.key, state.step, state.tokens)

    def _train(self, order: Order, handed: Handed | None, fetched_s: float) -> Trained:
        """The inner steps, until the last one, or until time is just enough to send.

        Raises:
            RoundError: if the silo was asked to stop.
        """
        trainer, state, began = self._trainer, self._trainer.state, now_s()
        control = None if handed is None else handed.invitation.task.control
        if handed is not None:
            handed.invitation.task.control.arm(upload_reserve_s(handed.invitation.task, fetched_s))
        losses = tokens = 0.0
        while state.step < self._place.first_step + order.inner_steps:
            if control is not None and control.should_stop:
                self._orders.halt(order, state.step + 1)
            outcome = trainer.advance()
            losses, tokens = losses + outcome.loss * outcome.tokens, tokens + outcome.tokens
            if trainer.pulse.stops_after(state.step):
                raise RoundError("the silo was asked to stop")
            if self._orders.halted(order, state.step):
                break
        if control is not None:
            control.disarm()
        steps = state.step - self._place.first_step
        metrics = {"loss": losses / tokens} if tokens else {}
        return Trained(steps, state.tokens - self._place.first_tokens, metrics, (fetched_s, now_s() - began))

    def _send(
        self, order: Order, link: TransferLink, handed: Handed | None, difference: Difference, trained: Trained
    ) -> None:
        """Send this rank's part, and again what the server turns out to lack; all ranks hear how it ended."""
        run, round_number, attempt = order.key.run, order.key.round, order.key.attempt
        key = UploadKey(run, round_number, attempt, order.upload_id)
        uploading = Uploading(key, Shard(difference.ranges, difference), order.encoding, link.chunk_bytes)
        began = now_s()
        for attempt in range(MAX_REPAIRS + 1):
            self._trainer.pulse.enter(self._trainer.state.step, "sending")
            sent = self._orders.agree(order, f"sent-{attempt}", _tried(partial(_upload, link, uploading, attempt)))
            if handed is not None:
                handed.delivered.put(self._delivery(order, handed, trained, sent, now_s() - began))
            word = self._orders.say(order, f"answer-{attempt}", "" if handed is None else handed.answer())
            if word != INCOMPLETE:
                break
        if word == COUNTED:
            difference.settle(uploading.chunks, order.encoding)

    def _delivery(self, order: Order, handed: Handed, trained: Trained, sent: list[bytes], upload_s: float) -> Delivery:
        batch = self._trainer.job.batch.global_batch
        counted = {"tokens": trained.tokens, "sequences": trained.steps * batch}[self._trainer.job.federation.weight]
        return Delivery(
            headers=[header for data in sent for header in _headers(data)],
            weight=max(1, min(counted, handed.invitation.task.max_weight)),
            metrics=trained.metrics | {"steps": float(trained.steps), "tokens": float(trained.tokens)},
            seconds=(*trained.seconds, upload_s),
            partial=trained.steps < order.inner_steps,
        )


@dataclass(frozen=True)
class Trained:
    """What the inner steps came to.

    Attributes:
        steps: of the round, those before a restart too.
        tokens: counted in them.
        metrics: means over the steps of this process.
        seconds: of fetching and of training.
    """

    steps: int
    tokens: int
    metrics: dict[str, float]
    seconds: tuple[float, float]


def _tried(work: Callable[[], object]) -> bytes | Exception:
    try:
        result = work()
    except _FAILURES as error:
        return error
    return result if isinstance(result, bytes) else b""


def _upload(link: TransferLink, uploading: Uploading, attempt: int) -> bytes:
    """Send; the headers of this rank's chunks."""
    if uploading.chunks:
        link.resume(uploading, ask=attempt > 0)
    chunks = [header_to_proto(header) for header in uploading.headers]
    return transfer_pb2.GetUploadStatusResponse(chunks=chunks).SerializeToString()


def _headers(data: bytes) -> list[ChunkHeader]:
    return [header_from_proto(chunk) for chunk in transfer_pb2.GetUploadStatusResponse.FromString(data).chunks]
