"""The phases of a round on one rank: fetch, begin, train, send. A transfer ends when it has ended on every rank."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from atoll.client import ClientError
from atoll.client.silo import INCOMPLETE, Abandoned, Shard, Upload, clip_factor, now_s, upload_reserve_s
from atoll.datacenter.checkpoint.state import MODEL
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.federation.base import Base
from atoll.datacenter.federation.difference import Difference
from atoll.datacenter.federation.lane import Lane, weights_device
from atoll.datacenter.federation.match import wanted_tensors
from atoll.datacenter.federation.orders import RoundError
from atoll.datacenter.federation.pieces import pieces_of
from atoll.datacenter.federation.round import Trained
from atoll.datacenter.federation.session_thread import MAX_REPAIRS, Delivery
from atoll.processes.heap import give_back
from atoll.wire.chunks import UploadKey, pack_header, unpack_headers
from atoll.wire.digest import BlobManifest
from atoll.wire.errors import WireError

if TYPE_CHECKING:
    from atoll.client import Task
    from atoll.client.control import TaskControl
    from atoll.client.silo import TaskTransfers
    from atoll.datacenter.federation.current_round import CurrentRound
    from atoll.datacenter.federation.orders import Order, Orders
    from atoll.datacenter.federation.pieces import Piece
    from atoll.datacenter.federation.residuals import Residuals
    from atoll.datacenter.federation.round import Round
    from atoll.datacenter.federation.session_thread import Handover
    from atoll.datacenter.train.launched import StepResult
    from atoll.datacenter.train.trainer import Trainer
    from atoll.wire.layout import Layout

log = logging.getLogger(__name__)

_FAILURES = (ClientError, WireError, Abandoned, LayoutError, OSError)
"""Errors that end a round on a rank, but not the silo."""


class Exchange:
    """Carries out rounds, one after another, and keeps what they share.

    Args:
        trainer: trainer of the job.
        orders: communication between the ranks.
        current: round of the silo; updated.
        residuals: rounding errors of updates.
        scratch: folder for the file with the model that a round starts from.
    """

    def __init__(
        self, trainer: Trainer, orders: Orders, current: CurrentRound, residuals: Residuals, scratch: Path
    ) -> None:
        self._trainer, self._orders, self._current, self._residuals = trainer, orders, current, residuals
        self._scratch, self._lane = scratch, Lane(weights_device(trainer.job, trainer.world))
        self._layout: Layout | None = None
        self._base: Base | None = None
        self._following = ""
        self._ended: tuple[int, int] | None = None

    def close(self) -> None:
        """Remove the model's file, and close the files of rounding errors."""
        self._close_base()
        self._residuals.close()

    def _close_base(self) -> None:
        if self._base is not None:
            self._base.close()
        self._base = None

    def knows(self, layout: Layout) -> bool:
        """Return whether ``arrange`` was last called for this layout."""
        return self._layout == layout

    def arrange(self, order: Order) -> None:
        """Determine which rank holds and sends what. Collective.

        Raises:
            LayoutError: on every rank, if they do not hold the whole model.
            RoundError: on every rank, if writing to the disk of one fails.
        """
        self._close_base()
        self._layout = None
        state = {name.removeprefix(MODEL): tensor for name, tensor in self._trainer.state.model_tensors().items()}
        pieces = pieces_of(state, order.layout, self._trainer.world.device)
        self._orders.agree(order, "arranged", tried(partial(self._keep, pieces)))
        self._here.meet(self._trainer.world.device)
        self._layout, self._following = order.layout, ""

    def _keep(self, pieces: Sequence[Piece]) -> None:
        self._base = Base(self._scratch / f"atoll-{secrets.token_hex(8)}.base", pieces)

    def fetch(self, now: Round) -> None:
        """Fetch the chunks of the model that this rank lacks. Does not change the weights. From any thread.

        Raises:
            RoundError: on every rank, if it failed on one.
        """
        began = now_s()
        give_back()
        sizes = self._orders.agree(now.order, "fetched", tried(partial(self._fetch, now.order, now.link)))
        now.fetched_s, now.fetched_bytes = now_s() - began, sum(map(int, sizes))

    @property
    def _here(self) -> Base:
        if self._base is None:
            raise RuntimeError("no layout has been arranged")
        return self._base

    def _fetch(self, order: Order, link: TaskTransfers) -> bytes:
        """Return the number of bytes downloaded, as digits."""
        base = self._here
        if not order.content:
            return b"%d" % link.fetch_into(order.blob, order.layout.size_bytes, base)
        manifest = BlobManifest.of_buffer(order.content)
        for number in base.lacks(manifest):
            first, stop = manifest.chunk_range(number)
            base.take(manifest, number, memoryview(order.content)[first:stop])
        return b"0"

    @torch.no_grad()
    def begin(self, order: Order) -> None:
        """Set the global weights, unless a checkpoint has restored weights from the middle of this round.

        In a round over a fragment, or one that began while the previous update was being sent, weights that did not
        change in the global model keep their local values (Douillard et al. 2025, algorithm 2). The others are mixed
        with the global ones.
        """
        state, base, section = self._trainer.state, self._here, self._trainer.job.federation
        follows = self._following == order.key.run
        resumed = not follows and self._current.run != "" and self._current.key == order.key
        goes_on = follows and bool(order.ranges or section.overlap_steps)
        if not resumed:
            share = section.mixing if goes_on and section.overlap_steps else 0.0
            for index in sorted(base.changed) if goes_on else range(len(base.pieces)):
                local = base.pieces[index].local
                fresh = base.of(index).view(local.shape).to(local.device, local.dtype)
                local.copy_(fresh if not share else fresh.lerp(local, share))
            since = self._ended if follows else None
            self._current.begin(order.key, *(since or (state.step, state.tokens)))
        base.taken_over()
        self._following, self._ended = order.key.run, None

    def left(self, order: Order) -> int:
        """Return the number of inner steps that are left in the current round."""
        return max(0, self._current.first_step + order.inner_steps - self._trainer.state.step)

    def train(self, order: Order, handover: Handover | None, fetched_s: float) -> Trained:
        """Run the inner steps until the last one, or until there is just enough time left to send.

        The metrics of a step are read after the next step is queued (see ``Trainer.queue``), and all of them before
        this returns. The step announced as the last one is the one after the next, and it is always run (see
        ``Orders.halt``).

        Raises:
            RoundError: if a stop of the silo was requested.
            TrainingError: if the loss or gradient of a step was not finite.
        """
        trainer, state, began = self._trainer, self._trainer.state, now_s()
        control = None if handover is None else handover.invitation.task.control
        if handover is not None:
            handover.invitation.task.control.arm(upload_reserve_s(handover.invitation.task, fetched_s))
        sums, step_s, announced = _Sums(), 0.0, False
        warm = state.step + 1  # the first step compiles and connects: its time is not representative
        while state.step < self._current.first_step + order.inner_steps:
            if control is not None and not announced and _ends_soon(control, step_s):
                self._orders.halt(order, state.step + 2)
                announced = True
            begun = now_s()
            sums.add(trainer.queue())
            step_s = now_s() - begun if state.step > warm else 0.0
            if trainer.pulse.stops_after(state.step):
                trainer.settle()
                reason = "the silo was asked to stop"
                raise RoundError(reason, reason)
            if self._orders.halted(order, state.step):
                break
        sums.add(trainer.settle())
        if control is not None:
            control.disarm()
        steps, tokens_of_round = state.step - self._current.first_step, state.tokens - self._current.first_tokens
        return Trained(steps, tokens_of_round, sums.metrics, now_s() - began)

    def difference(self, order: Order) -> Difference:
        """Return what to send of the current weights.

        Raises:
            LayoutError: on every rank, if the order's ranges cut a tensor.
            RoundError: on every rank, if one cannot read its rounding errors.
        """
        give_back()
        state = self._trainer.state
        self._ended = (state.step, state.tokens) if self._overlaps else None
        self._lane.follow()
        spans = wanted_tensors(order.layout, order.ranges)
        wanted = [index for index, piece in enumerate(self._here.pieces) if piece.span.spec.name in spans]
        found = Difference(self._here, self._residuals, order.max_abs, wanted, self._lane)
        self._orders.agree(order, "prepared", tried(partial(self._residuals.adopt, order.counted, found.tag)))
        return found

    def clip(self, order: Order, difference: Difference) -> None:
        """Scale the parts of all ranks equally if their joint norm exceeds the order's limit. Collective.

        Raises:
            RoundError: on every rank, if a part of one is not finite.
        """
        if order.clip_norm is None:
            return
        found = self._orders.agree(order, "measured", tried(lambda: difference.norm(order.encoding).hex().encode()))
        factor = clip_factor(math.hypot(*map(_from_hex, found)), order.clip_norm) if found else 1.0
        difference.scale = _from_hex(self._orders.say(order, "scale", factor.hex()).encode())

    def hold(self, now: Round) -> None:
        """Encode the update into host memory, if further steps run while it is sent. Collective.

        Raises:
            RoundError: on every rank, if it failed on one.
        """
        if self._overlaps and now.difference is not None:
            work = partial(now.difference.hold, self._upload(now, now.difference).chunks, now.order.encoding)
            self._orders.agree(now.order, "encoded", tried(work))

    @property
    def _overlaps(self) -> bool:
        return self._trainer.job.federation.overlap_steps > 0

    def _upload(self, now: Round, difference: Difference) -> Upload:
        order = now.order
        key = UploadKey(order.key.run, order.key.round, order.key.attempt, order.upload_id)
        return Upload(key, Shard(difference.ranges, difference), order.encoding, now.link.chunk_bytes)

    def send(self, now: Round) -> None:
        """Send this rank's part, and resend what the server lacks; all ranks learn the outcome. From any thread.

        The rounding errors after the update are on disk on every rank before it is reported. The next order says
        whether to continue with them.

        Raises:
            RoundError: on every rank, if it failed on one.
        """
        order, handover, link, difference = now.order, now.handover, now.link, now.difference
        if difference is None:
            raise RuntimeError("nothing has been trained")
        uploading = self._upload(now, difference)
        began = now_s()
        for attempt in range(MAX_REPAIRS + 1):
            work = partial(_send, link, uploading, attempt, order, difference)
            sent = self._orders.agree(order, f"sent-{attempt}", tried(work))
            if handover is not None:
                handover.delivered.put(self._delivery(now, handover, sent, now_s() - began))
            word = self._orders.say(order, f"answer-{attempt}", "" if handover is None else handover.answer())
            if word != INCOMPLETE:
                break

    def _delivery(self, now: Round, handover: Handover, sent: list[bytes], upload_s: float) -> Delivery:
        trained = now.trained
        if trained is None:
            raise RuntimeError("nothing has been trained")
        job = self._trainer.job
        tokens, metrics = trained.tokens, trained.metrics | {"tokens": float(trained.tokens)}
        sequences = trained.steps * job.batch.global_batch
        if self._trainer.mechanism is not None:  # losses and sample counts would reveal single sequences
            tokens, metrics = sequences * self._trainer.mechanism.tokens, {}
        weight = tokens if job.federation.weight == "tokens" else sequences
        return Delivery(
            headers=[header for data in sent for header in unpack_headers(data)],
            weight=_bounded(weight, handover.invitation.task),
            metrics=metrics | {"steps": float(trained.steps)},
            fetched_bytes=now.fetched_bytes,
            seconds=(now.fetched_s or 0.0, trained.seconds, upload_s),
            partial=trained.steps < now.order.inner_steps,
        )


def _bounded(weight: int, task: Task) -> int:
    """Bound the weight by what the server accepts; this silo has declared at least the longest round's weight."""
    if weight > task.max_weight:
        log.warning(
            "%s has weight %d instead of %d: the server's aggregation.max_weight limits it",
            task.key,
            task.max_weight,
            weight,
        )
    return max(1, min(weight, task.max_weight))


@dataclass
class _Sums:
    """Sums over the steps of a round, in their order."""

    losses: float = 0.0
    tokens: float = 0.0

    def add(self, results: Sequence[StepResult]) -> None:
        for one in results:
            self.losses, self.tokens = self.losses + one.loss * one.tokens, self.tokens + one.tokens

    @property
    def metrics(self) -> dict[str, float]:
        return {"loss": self.losses / self.tokens} if self.tokens else {}


def _ends_soon(control: TaskControl, step_s: float) -> bool:
    """Return whether there is time for the step that is queued, this one and the next, but not for another."""
    return control.should_stop or control.remaining_s - control.reserve_s < 4 * step_s


def tried(work: Callable[[], object]) -> bytes | Exception:
    """Run some work for ``Orders.agree``: returns its bytes, or the error that ends the round but not the silo."""
    try:
        result = work()
    except _FAILURES as error:
        return error
    return result if isinstance(result, bytes) else b""


def _send(link: TaskTransfers, uploading: Upload, attempt: int, order: Order, difference: Difference) -> bytes:
    """Send, keep the rounding errors, and return the headers of this rank's chunks."""
    if attempt == 0:
        difference.begin(uploading.chunks, order.encoding)
    if uploading.chunks:
        link.resume(uploading, ask=attempt > 0)
    if attempt == 0:
        difference.keep(order.upload_id)
    return b"".join(map(pack_header, uploading.headers))


def _from_hex(digits: bytes) -> float:
    return float.fromhex(digits.decode())
