"""The parts of one round on one rank: fetch, begin, train, send. Transfers end when those of every rank have ended."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from atoll.client import ClientError
from atoll.client.clock import now_s
from atoll.client.privacy.clipping import clip_factor
from atoll.client.session.work import INCOMPLETE, upload_reserve_s
from atoll.client.transfer import Abandoned, Shard, Uploading
from atoll.datacenter.checkpoint.state import MODEL
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.federation.base import Base
from atoll.datacenter.federation.desk import MAX_REPAIRS, Delivery
from atoll.datacenter.federation.difference import Difference
from atoll.datacenter.federation.match import wanted_tensors
from atoll.datacenter.federation.orders import RoundError
from atoll.datacenter.federation.pieces import pieces_of
from atoll.datacenter.federation.round import Trained
from atoll.wire.chunks import UploadKey, pack_header, unpack_headers
from atoll.wire.digest import BlobManifest
from atoll.wire.errors import WireError
from atoll.wire.heap import give_back

if TYPE_CHECKING:
    from atoll.client import Task
    from atoll.client.control import TaskControl
    from atoll.client.transfer import TransferLink
    from atoll.datacenter.federation.desk import Handed
    from atoll.datacenter.federation.difference import Rounding
    from atoll.datacenter.federation.orders import Order, Orders
    from atoll.datacenter.federation.pieces import Piece
    from atoll.datacenter.federation.place import Place
    from atoll.datacenter.federation.round import Round
    from atoll.datacenter.train.trainer import Trainer
    from atoll.wire.layout import Layout

log = logging.getLogger(__name__)

COUNTED = "counted"
_FAILURES = (ClientError, WireError, Abandoned, LayoutError, OSError)
"""What ends a round on a rank, but not the silo."""


class Exchange:
    """Does rounds, one after another; keeps what they have in common.

    Args:
        trainer: of the job.
        orders: between the ranks.
        place: in the federation; changed.
        rounding: of updates; changed.
        scratch: folder where this rank keeps what a round starts from.
    """

    def __init__(self, trainer: Trainer, orders: Orders, place: Place, rounding: Rounding, scratch: Path) -> None:
        self._trainer, self._orders, self._place, self._rounding = trainer, orders, place, rounding
        self._scratch = scratch
        self._layout: Layout | None = None
        self._base: Base | None = None
        self._following = ""
        self._ended: tuple[int, int] | None = None

    def close(self) -> None:
        """Let go of the file."""
        if self._base is not None:
            self._base.close()
        self._base = None

    def knows(self, layout: Layout) -> bool:
        """Whether ``arrange`` has been called for this layout last."""
        return self._layout == layout

    def arrange(self, order: Order) -> None:
        """Find out which rank holds and sends what. Collective.

        Raises:
            LayoutError: on every rank, if they do not hold the whole model.
            RoundError: on every rank, if the disk of one refuses.
        """
        self.close()
        self._layout = None
        state = {name.removeprefix(MODEL): tensor for name, tensor in self._trainer.state.model_tensors().items()}
        pieces = pieces_of(state, order.layout, self._trainer.world.device)
        self._orders.agree(order, "arranged", tried(partial(self._keep, pieces)))
        self._here.meet(self._trainer.world.device)
        self._layout, self._following = order.layout, ""

    def _keep(self, pieces: Sequence[Piece]) -> None:
        self._base = Base(self._scratch / f"atoll-{secrets.token_hex(8)}.base", pieces)

    def fetch(self, now: Round) -> None:
        """What this rank lacks of the model. The weights stay as they are. Any thread.

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

    def _fetch(self, order: Order, link: TransferLink) -> bytes:
        """Bytes that were downloaded, in digits."""
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
        """Take the global weights, unless a checkpoint has brought back weights from the midst of this very round.

        A round over a fragment, or one that began while the last one's update travelled, leaves the weights that are
        the same as before to go on (Douillard et al. 2025, algorithm 2); the others are mixed with those that come.
        """
        state, base, section = self._trainer.state, self._here, self._trainer.job.federation
        follows = self._following == order.key.run
        resumed = not follows and self._place.run != "" and self._place.key == order.key
        goes_on = follows and bool(order.ranges or section.overlap_steps)
        if not resumed:
            share = section.mixing if goes_on and section.overlap_steps else 0.0
            for index in sorted(base.changed) if goes_on else range(len(base.pieces)):
                local = base.pieces[index].local
                fresh = base.of(index).view(local.shape).to(local.device, local.dtype)
                local.copy_(fresh if not share else fresh.lerp(local, share))
            since = self._ended if follows else None
            self._place.begin(order.key, *(since or (state.step, state.tokens)))
        base.taken_over()
        self._following, self._ended = order.key.run, None

    def left(self, order: Order) -> int:
        """Inner steps of a round that has begun that are still to be made."""
        return max(0, self._place.first_step + order.inner_steps - self._trainer.state.step)

    def train(self, order: Order, handed: Handed | None, fetched_s: float) -> Trained:
        """The inner steps, until the last one, or until time is just enough to send.

        Once the last one is announced, it is made: so it is announced while there is time for it, but not for another.

        Raises:
            RoundError: if the silo was asked to stop.
        """
        trainer, state, began = self._trainer, self._trainer.state, now_s()
        control = None if handed is None else handed.invitation.task.control
        if handed is not None:
            handed.invitation.task.control.arm(upload_reserve_s(handed.invitation.task, fetched_s))
        losses = tokens = step_s = 0.0
        warm = state.step + 1  # the first step of all compiles and connects: no measure for others
        while state.step < self._place.first_step + order.inner_steps:
            if control is not None and _is_last(control, step_s):
                self._orders.halt(order, state.step + 1)
            begun = now_s()
            outcome = trainer.advance()
            step_s = now_s() - begun if state.step > warm else 0.0
            losses, tokens = losses + outcome.loss * outcome.tokens, tokens + outcome.tokens
            if trainer.pulse.stops_after(state.step):
                reason = "the silo was asked to stop"
                raise RoundError(reason, reason)
            if self._orders.halted(order, state.step):
                break
        if control is not None:
            control.disarm()
        steps, tokens_of_round = state.step - self._place.first_step, state.tokens - self._place.first_tokens
        metrics = {"loss": losses / tokens} if tokens else {}
        return Trained(steps, tokens_of_round, metrics, now_s() - began)

    def difference(self, order: Order) -> Difference:
        """What is to be sent; a copy of it if steps go on meanwhile, which then count as the next round's.

        Raises:
            LayoutError: if the order's ranges cut a tensor: the same on every rank.
        """
        give_back()
        state, overlaps = self._trainer.state, self._trainer.job.federation.overlap_steps > 0
        self._ended = (state.step, state.tokens) if overlaps else None
        spans = wanted_tensors(order.layout, order.ranges)
        wanted = [index for index, piece in enumerate(self._here.pieces) if piece.span.spec.name in spans]
        return Difference(self._here, self._rounding, order.max_abs, wanted, copied=overlaps)

    def clip(self, order: Order, difference: Difference) -> None:
        """Scale all ranks' parts alike, if together they are longer than the order allows. Collective.

        Raises:
            RoundError: on every rank, if a part of one is not finite.
        """
        if order.clip_norm is None:
            return
        found = self._orders.agree(order, "measured", tried(lambda: difference.norm(order.encoding).hex().encode()))
        factor = clip_factor(math.hypot(*map(_from_hex, found)), order.clip_norm) if found else 1.0
        difference.scale = _from_hex(self._orders.say(order, "scale", factor.hex()).encode())

    def send(self, now: Round) -> None:
        """Send this rank's part, and again what the server turns out to lack; all hear how it ended. Any thread.

        Raises:
            RoundError: on every rank, if it failed on one.
        """
        order, handed, link, difference = now.order, now.handed, now.link, now.difference
        if difference is None:
            raise RuntimeError("nothing has been trained")
        key = UploadKey(order.key.run, order.key.round, order.key.attempt, order.upload_id)
        uploading = Uploading(key, Shard(difference.ranges, difference), order.encoding, link.chunk_bytes)
        began, word = now_s(), INCOMPLETE
        for attempt in range(MAX_REPAIRS + 1):
            sent = self._orders.agree(order, f"sent-{attempt}", tried(partial(_upload, link, uploading, attempt)))
            if handed is not None:
                handed.delivered.put(self._delivery(now, handed, sent, now_s() - began))
            word = self._orders.say(order, f"answer-{attempt}", "" if handed is None else handed.answer())
            if word != INCOMPLETE:
                break
        if word == COUNTED:
            difference.settle(uploading.chunks, order.encoding)

    def _delivery(self, now: Round, handed: Handed, sent: list[bytes], upload_s: float) -> Delivery:
        trained = now.trained
        if trained is None:
            raise RuntimeError("nothing has been trained")
        job = self._trainer.job
        tokens, metrics = trained.tokens, trained.metrics | {"tokens": float(trained.tokens)}
        sequences = trained.steps * job.batch.global_batch
        if self._trainer.mechanism is not None:  # losses, and how many were sampled, would tell of single sequences
            tokens, metrics = sequences * self._trainer.mechanism.tokens, {}
        weight = tokens if job.federation.weight == "tokens" else sequences
        return Delivery(
            headers=[header for data in sent for header in unpack_headers(data)],
            weight=_bounded(weight, handed.invitation.task),
            metrics=metrics | {"steps": float(trained.steps)},
            fetched_bytes=now.fetched_bytes,
            seconds=(now.fetched_s or 0.0, trained.seconds, upload_s),
            partial=trained.steps < now.order.inner_steps,
        )


def _bounded(weight: int, task: Task) -> int:
    """What the server takes; this silo has declared no less than the longest round's."""
    if weight > task.max_weight:
        log.warning(
            "%s counts for %d instead of %d: that is the server's aggregation.max_weight",
            task.key,
            task.max_weight,
            weight,
        )
    return max(1, min(weight, task.max_weight))


def _is_last(control: TaskControl, step_s: float) -> bool:
    """Whether a step that begins now is the last one for which there is time."""
    return control.should_stop or control.remaining_s - control.reserve_s < 2 * step_s


def tried(work: Callable[[], object]) -> bytes | Exception:
    """What some work gave on this rank, for ``Orders.agree``: bytes, or what ends the round but not the silo."""
    try:
        result = work()
    except _FAILURES as error:
        return error
    return result if isinstance(result, bytes) else b""


def _upload(link: TransferLink, uploading: Uploading, attempt: int) -> bytes:
    """Send; the headers of this rank's chunks."""
    if uploading.chunks:
        link.resume(uploading, ask=attempt > 0)
    return b"".join(map(pack_header, uploading.headers))


def _from_hex(digits: bytes) -> float:
    return float.fromhex(digits.decode())
