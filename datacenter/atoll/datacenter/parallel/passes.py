"""Forward and backward passes over this rank's share of the global batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from atoll.datacenter.errors import TrainingError
from atoll.datacenter.parallel.data import DTYPES

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.parallel.loss import Loss
    from atoll.datacenter.parallel.uneven import Stopwatch


class MicroBatch(Protocol):
    """Input of one forward pass: tokens ``[batch, ...]`` and labels ``[batch, ...]``, int64."""

    @property
    def tokens(self) -> Tensor:
        """The inputs."""
        ...

    @property
    def labels(self) -> Tensor:
        """The targets; -100 does not count."""
        ...

    @property
    def documents(self) -> Tensor | None:
        """Document of each token, int64 ``[batch, sequence]``; None if unknown."""
        ...

    @property
    def positions(self) -> Tensor | None:
        """Position of each token in its document, int64 ``[batch, sequence]``; None if unknown."""
        ...


def document_inputs(batches: Sequence[MicroBatch], job: SiloJob) -> dict[str, Tensor]:
    """Return a model's inputs besides tokens, for several micro-batches together; empty without document masks.

    Raises:
        TrainingError: if the job asks for document masks, and the data has no documents.
    """
    if not job.data.document_masks:
        return {}
    found: dict[str, Tensor] = {}
    for name in ("documents", "positions"):
        parts = [part for batch in batches if (part := getattr(batch, name)) is not None]
        if len(parts) < len(batches):
            raise TrainingError(f"data.document_masks = true, but the rows have no {name}: set it to false")
        found[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
    return found


class Passes(Protocol):
    """Computes the gradient of the global mean loss and leaves it in the parameters."""

    @property
    def parts(self) -> Sequence[nn.Module]:
        """The module, or this rank's stages of it."""
        ...

    def __call__(self, batches: Sequence[MicroBatch], divisor: float | Tensor) -> Tensor:
        """Run the passes.

        Args:
            batches: this rank's micro-batches of the step.
            divisor: divides each loss: counted tokens of the global batch over the loss scale; a float32 scalar on the
                device, so that no rank waits for it.

        Returns:
            float32 scalar: sum of this rank's token losses over the divisor; 0 if another stage computes them.
        """
        ...

    def evaluate(self, batches: Sequence[MicroBatch]) -> Tensor:
        """Run only forward passes; the caller turns gradients off and sets the modules' mode.

        Args:
            batches: micro-batches of this rank, all of one shape.

        Returns:
            float64 scalar: sum of this rank's token losses; 0 if another stage computes them.
        """
        ...


@dataclass
class PlainPasses:
    """Passes of a model without pipeline stages.

    Attributes:
        module: the module, cut and filled.
        loss: loss of the job.
        watch: times forward passes if shares are uneven.
    """

    module: nn.Module
    loss: Loss
    job: SiloJob
    device: torch.device
    watch: Stopwatch | None = None

    @property
    def parts(self) -> Sequence[nn.Module]:
        """The module, as the only part."""
        return (self.module,)

    def __call__(self, batches: Sequence[MicroBatch], divisor: float | Tensor) -> Tensor:
        """See ``Passes``."""
        total = torch.zeros((), device=self.device)
        for batch, last in marking_last(batches):
            with self._gradient_sync(last=last), self.loss.context():
                with self._autocast(), self._timed():
                    outputs = self.module(batch.tokens, **document_inputs((batch,), self.job))
                loss = self.loss(outputs, batch.labels, divisor)
                del outputs  # the largest tensor of all: the backward pass frees it after use
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            total += _local(loss.detach())
        return total

    def evaluate(self, batches: Sequence[MicroBatch]) -> Tensor:
        """See ``Passes``."""
        bare = self.module.module if isinstance(self.module, DistributedDataParallel) else self.module
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for batch in batches:
            with self.loss.context():
                with self._autocast():
                    outputs = bare(batch.tokens, **document_inputs((batch,), self.job))
                total += _local(self.loss(outputs, batch.labels, 1.0))
            del outputs  # before those of the next micro-batch are made
        return total

    def _timed(self) -> AbstractContextManager[object]:
        return nullcontext() if self.watch is None else self.watch.running()

    def _autocast(self) -> AbstractContextManager[object]:
        """Use autocast for DDP and for a single rank, which have no mixed precision; FSDP has it in its policy."""
        if self.job.precision.compute == "float32" or isinstance(self.module, FSDPModule):
            return nullcontext()
        return torch.autocast(self.device.type, DTYPES[self.job.precision.compute])

    @contextmanager
    def _gradient_sync(self, *, last: bool) -> Iterator[None]:
        """Sum gradients after the last micro-batch, or after each one if gradients do not stay whole (zero2, zero3).

        Between whole replicas (``dp_replicate``) they are summed once in any case, unless pending sums would be in less
        than float32.
        """
        if isinstance(self.module, DistributedDataParallel) and not last:
            with self.module.no_sync():
                yield
            return
        if isinstance(self.module, FSDPModule):
            self.module.set_is_last_backward(last)
            method = self.job.data_parallel.method
            if method in {"ddp", "zero1"}:
                self.module.set_requires_gradient_sync(last)
            elif self.job.precision.reduce == "float32":
                self.module.set_requires_all_reduce(last)
            if method in {"zero1", "zero2"}:
                self.module.set_reshard_after_backward(last)
        yield


def marking_last(batches: Iterable[MicroBatch]) -> Iterator[tuple[MicroBatch, bool]]:
    """Yield each micro-batch, and whether it is the last. Reads one ahead, so the batches may end early."""
    following = iter(batches)
    batch = next(following, None)
    while batch is not None:
        after = next(following, None)
        yield batch, after is None
        batch = after


def _local(loss: Tensor) -> Tensor:
    return loss.full_tensor() if isinstance(loss, DTensor) else loss
