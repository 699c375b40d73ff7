"""DP-SGD on the participant's side: differential privacy of each sample (Abadi et al. 2016).

::

    participant = OpacusParticipant(  # whole in docs/privacy/local.md
        module=net, loader=DataLoader(data, batch_size=64), loss=cross_entropy, optimiser=sgd,
        privacy=DpSgd(noise_multiplier=1.0, max_grad_norm=1.0, limit=Limit(epsilon=8.0, delta=1e-5)),
    )

The unit of privacy is one sample of the data set. A ledger adds up all rounds and runs; a round beyond the limit is
declined before training. Losses are not sent, and the weight does not depend on which samples were drawn.

Layers, clipping and accountants are those of Opacus. Samples and noise are drawn from a cryptographic keystream,
because PyTorch's generator has 32 bits of seed on the CPU, and Opacus' ``secure_mode`` needs torchcsprng.
"""

from __future__ import annotations

import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from opacus.grad_sample import GradSampleHooks
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from torch.utils.data import DataLoader, Sampler

from atoll.accounting import ACCOUNTANTS, DATA_NAME_PATTERN, Accountant
from atoll.client._privacy.keystream import Keystream
from atoll.client._privacy.ledger import Ledger, Limit, Release
from atoll.client._privacy.sample_ledger import cost, dp_sgd_release, ledger_path, sample_ledger
from atoll.client.errors import UsageError
from atoll.client.task import TaskKind
from atoll.client.torch import Loss, OptimiserFactory, TorchParticipant, held, load, proximal_pull, to_array, travelling
from atoll.client.update import Update

if TYPE_CHECKING:
    from atoll.client.model import Model
    from atoll.client.task import Task

__all__ = ["DpSgd", "Limit", "OpacusParticipant", "PrivateSteps", "cost"]


@dataclass(frozen=True)
class DpSgd:
    """The noise of each step, and the limit of all rounds and runs on the data set.

    Attributes:
        noise_multiplier: standard deviation of the noise over ``max_grad_norm``.
        max_grad_norm: L2 norm to which a sample's gradient is clipped.
        limit: of all rounds together; delta should be well below 1 / samples.
        data: name of the data set, which names its ledger.
        ledger: its file, for data that several state directories share; None: ``privacy/samples-<data>.json`` in the
            participant's state directory.
        micro_batch: maximum number of per-sample gradients held at once, each as large as the model; None: a step's.
        accountant: ``rdp``, or ``prv``, which is tighter, takes seconds, and falls back to ``rdp`` where float64 is too
            coarse. Once noise or sampling differs from earlier rounds, ``rdp`` composes all rounds: no other bound is
            known for adaptively chosen steps (Feldman & Zrnic 2021).

    Raises:
        UsageError: for values out of range.
    """

    noise_multiplier: float
    max_grad_norm: float
    limit: Limit
    data: str = "data"
    ledger: Path | None = None
    micro_batch: int | None = None
    accountant: Accountant = "rdp"

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "max_grad_norm"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise UsageError(f"{name} = {value}; allowed is anything finite above 0")
        if self.limit.delta == 0:
            raise UsageError("the limit's delta is 0, and Gaussian noise has no epsilon then; allowed is above 0")
        if not re.fullmatch(DATA_NAME_PATTERN, self.data):
            raise UsageError(f"data = {self.data!r}; allowed are 1 to 64 letters, digits, and any of . _ -")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise UsageError(f"micro_batch = {self.micro_batch}; allowed is at least 1, or None")
        if self.accountant not in ACCOUNTANTS:
            raise UsageError(f"accountant = {self.accountant!r}; allowed are {' and '.join(ACCOUNTANTS)}")

    def release(self, sample_rate: float, steps: int) -> Release:
        """The release of ``count`` steps, for the ledger."""
        return dp_sgd_release(self.noise_multiplier, sample_rate, steps)

    def open_ledger(self, state: Path) -> Ledger:
        """The data set's ledger, for a state directory."""
        return sample_ledger(self.ledger or ledger_path(state, self.data), self.limit, self.accountant)


class OpacusParticipant(TorchParticipant):
    """Trains a module with DP-SGD; see the module and ``TorchParticipant``.

    Settings: ``epochs`` (default 1; converted to steps), ``proximal_mu``, and those that the optimiser factory reads.
    When the deadline is near it stops between two steps; steps that were not taken are removed from the ledger.

    Args:
        module: with layers that Opacus supports: no batch norm.
        loader: provides data set, expected batch size and collate function; Poisson sampling replaces its order.
        loss: mean loss of (outputs, targets).
        optimiser: makes the optimiser from parameters and the task's settings.
        privacy: noise and limit.
        evaluation: batches to evaluate on. Their metrics are sent without noise, so they must not be from the data set.
        device: device to train on.

    Raises:
        UsageError: for a module or a loader that cannot be used.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        loader: DataLoader[Any],
        loss: Loss,
        optimiser: OptimiserFactory,
        *,
        privacy: DpSgd,
        evaluation: Iterable[Any] | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(module, loader, loss, optimiser, evaluation=evaluation, device=device)
        problems = ModuleValidator.validate(module, strict=False)
        if problems:
            raise UsageError(f"the module cannot be trained with DP-SGD: {problems[0]}")
        if not loader.batch_size:
            raise UsageError("the loader has no batch_size, from which the sampling rate is computed")
        self._private_loader = loader
        self._privacy = privacy
        self._sample_rate = min(1.0, loader.batch_size / self.examples)
        self._ledger = None if privacy.ledger is None else privacy.open_ledger(privacy.ledger.parent)

    @property
    def ledger(self) -> Ledger:
        """The ledger of the data set.

        Raises:
            UsageError: before ``prepare``, which the session calls, if no file was given.
        """
        if self._ledger is None:
            raise UsageError("there is no ledger yet: call prepare(state) first, or give DpSgd(ledger=...)")
        return self._ledger

    def prepare(self, state: Path) -> None:
        """See ``Participant``."""
        self._ledger = self._privacy.open_ledger(state)

    def objection(self, task: Task) -> str | None:
        """See ``Participant``: declines if the task's steps would exceed the limit."""
        return None if task.kind is TaskKind.EVALUATE else self.ledger.objection(self._release(task))

    def fit(self, model: Model, task: Task) -> Update:
        """Charge the round, load the global model and train; the update has views of the module's tensors.

        Raises:
            BudgetSpentError: if the limit does not allow the round.
        """
        release = self._release(task)
        self.ledger.charge(task.key, task.run_name, release)
        with held(self.module, task):
            return self._fit_charged(model, task, release)

    def _fit_charged(self, model: Model, task: Task, release: Release) -> Update:
        tensors = travelling(self.module, self._buffers)
        load(tensors, model)
        pull = proximal_pull(self.module, model, task.proximal_mu)
        optimiser = self.optimiser([p for p in self.module.parameters() if p.requires_grad], task.settings)
        self.module.train()
        with PrivateSteps(self.module, optimiser, self._private_loader, self._privacy, release.count) as steps:
            for batch in steps:
                if batch is not None:
                    torch.autograd.backward(self.batch_loss(batch))
                steps.step(pull)
                if task.should_stop:
                    break
        self.ledger.settle(task.key, release, steps.made)
        share = self.examples * steps.made // release.count
        return Update(
            weights={name: to_array(tensor) for name, tensor in tensors.items()},
            weight=min(max(1, share), task.max_weight),
            partial=steps.made < release.count,
        )

    def _release(self, task: Task) -> Release:
        per_epoch = -(-self.examples // (self._private_loader.batch_size or 1))
        return self._privacy.release(self._sample_rate, max(1, task.settings.integer("epochs", 1) * per_epoch))


class PrivateSteps:
    """The steps of one charged round, for custom training loops; a context manager.

    ::

        with PrivateSteps(net, optimiser, loader, privacy, release.count) as steps:
            for batch in steps:
                if batch is not None:
                    loss(net(batch[0]), batch[1]).backward()
                steps.step()

    Each sample is in a step independently, with the same probability. A step may have no samples: its batch is None,
    and it adds only noise. A step with more samples than a micro-batch has several batches: call ``step`` after each;
    the last call takes the step. A sample whose gradient is not finite is left out.

    Args:
        module: gets hooks, which are removed at the end.
        optimiser: of all its trainable parameters; losses must be means over the batch.
        loader: see ``OpacusParticipant``.
        privacy: noise and limit.
        count: number of charged steps.

    Attributes:
        made: number of steps taken.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        optimiser: torch.optim.Optimizer,
        loader: DataLoader[Any],
        privacy: DpSgd,
        count: int,
    ) -> None:
        samples = len(loader.dataset)  # type: ignore[arg-type]  # Sized is what DpSgd is for
        expected = min(samples, loader.batch_size or 1)
        self._hooks = GradSampleHooks(module, loss_reduction="mean")
        self._clipping: Any = DPOptimizer(
            optimiser,
            noise_multiplier=privacy.noise_multiplier,
            max_grad_norm=privacy.max_grad_norm,
            expected_batch_size=expected,
        )
        self._optimiser = optimiser
        self._std = privacy.noise_multiplier * privacy.max_grad_norm
        self._noise, self._drawn = Keystream(), 0
        self._sampler = PoissonSampler(samples, expected / samples, count, Keystream(), privacy.micro_batch)
        self._batches = DataLoader(
            loader.dataset,
            batch_sampler=self._sampler,
            collate_fn=_Collate(loader.collate_fn),
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
        )
        self._quiet = warnings.catch_warnings()
        self._is_last = True
        self.made = 0

    def __enter__(self) -> Self:
        self._quiet.__enter__()
        warnings.filterwarnings("ignore", message="Full backward hook is firing")  # of the first layer: as it should
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clipping.zero_grad(set_to_none=True)
        self._hooks.cleanup()
        self._quiet.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[Any]:
        self._clipping.zero_grad(set_to_none=True)
        for batch in self._batches:
            self._is_last = self._sampler.ends.popleft()
            if batch is None:
                for parameter in self._clipping.params:
                    parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
            yield batch

    @torch.no_grad()
    def step(self, before: Callable[[], object] = lambda: None) -> None:
        """Clip the gradients; after a step's last batch add noise and take the optimiser's step.

        ``before`` is called between the two and may change the gradients by public values only.
        """
        _drop_infinite([parameter.grad_sample for parameter in self._clipping.params])
        self._clipping.clip_and_accumulate()
        if not self._is_last:
            for parameter in self._clipping.params:
                parameter.grad_sample = None
            return
        for parameter in self._clipping.params:
            parameter.grad = (parameter.summed_grad + self._noise_like(parameter)).view_as(parameter)
        self._clipping.scale_grad()
        before()
        self._optimiser.step()
        self._clipping.zero_grad(set_to_none=True)
        self.made += 1

    def _noise_like(self, parameter: torch.Tensor) -> torch.Tensor:
        drawn = self._noise.normals(self._drawn, parameter.numel())
        self._drawn += parameter.numel()
        return torch.from_numpy(self._std * drawn).to(parameter.device, parameter.dtype).view(parameter.shape)


class PoissonSampler(Sampler[list[int]]):
    """Poisson sampling: each sample is in a step independently, with the same probability.

    Args:
        samples: number of samples.
        rate: probability of each sample.
        count: number of steps.
        stream: source of randomness.
        most: maximum samples of a batch; a larger step has several batches. None: no limit.

    Attributes:
        ends: for each yielded batch, whether it is the last of its step.
    """

    def __init__(self, samples: int, rate: float, count: int, stream: Keystream, most: int | None = None) -> None:
        self._samples, self._rate, self._count, self._stream = samples, rate, count, stream
        self._most = most or samples
        self.ends: deque[bool] = deque()

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self._count):
            drawn = self._stream.uniforms(number * self._samples, self._samples)
            found = np.flatnonzero(drawn < self._rate).tolist()
            for first in range(0, max(1, len(found)), self._most):
                self.ends.append(first + self._most >= len(found))
                yield found[first : first + self._most]


@dataclass(frozen=True)
class _Collate:
    """The loader's collate function; returns None for an empty batch."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, items: list[Any]) -> Any:
        return self.collate(items) if items else None


def _drop_infinite(gradients: Sequence[torch.Tensor]) -> None:
    """Set to 0, in place, the gradients of samples that are not finite, which cannot be clipped."""
    samples = len(gradients[0])
    if not samples:
        return
    finite = torch.stack([gradient.isfinite().reshape(samples, -1).all(dim=1) for gradient in gradients]).all(dim=0)
    if not bool(finite.all()):
        for gradient in gradients:
            gradient[~finite] = 0
