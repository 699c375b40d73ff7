"""Train many torch participants of one architecture in one call, side by side on one device.

A simulation with ``Federation(..., batched=64)`` hands 64 participants at a time to ``fit_together``. Their parameters
are stacked, and each step is one forward and backward pass over all (``torch.func.vmap``). This keeps a GPU busy with
small models. The updates equal those of ``TorchParticipant`` up to rounding, because sums are computed in another
order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.func import functional_call, vmap

from atoll.client.errors import UsageError
from atoll.client.torch import TorchParticipant, as_tensor, check_match, held, to_array, travelling
from atoll.client.update import Update

if TYPE_CHECKING:
    from atoll.client.model import Model
    from atoll.client.task import Task

Batch = tuple[torch.Tensor, torch.Tensor]


class BatchedTorchParticipant(TorchParticipant):
    """A ``TorchParticipant`` that can be trained together with others of its architecture.

    Additional requirements: batches of (inputs, targets), two tensors whose examples have one shape; a loss that is a
    mean over examples; an optimiser that treats each element alone (SGD, Adam and their relatives, no norms over
    tensors); no buffers (batch norm) and no randomness in the module (dropout). All batches of a task are in memory.
    """

    @classmethod
    def fit_together(cls, participants: Sequence[Self], model: Model, tasks: Sequence[Task]) -> list[Update]:
        """Train participants on one model, each on its own batches; the updates in their order.

        Raises:
            UsageError: if a module's tensors differ from the global model's, or it has buffers.
        """
        first, task = participants[0], tasks[0]
        for one in participants:
            check_match(travelling(one.module, "average"), model)
            if next(one.module.buffers(), None) is not None:
                raise UsageError("a module with buffers cannot be trained together with others: fit it alone")
        with held(first.module, task):
            return cls._fitted(participants, model, tasks)

    @classmethod
    def _fitted(cls, participants: Sequence[Self], model: Model, tasks: Sequence[Task]) -> list[Update]:
        first, task = participants[0], tasks[0]
        epochs = task.settings.integer("epochs", 1)
        batches = [one.batches(each, epochs) for one, each in zip(participants, tasks, strict=True)]
        side = _SideBySide.of(first, model, len(participants), task.proximal_mu)
        optimiser = first.optimiser(list(side.stacked.values()), task.settings)
        first.module.train()
        for step in range(max(map(len, batches), default=0)):
            if any(each.should_stop for each in tasks):
                break
            side.step([own[step] if step < len(own) else None for own in batches], optimiser)
        return [
            _update(one, side, place, epochs, each)
            for place, (one, each) in enumerate(zip(participants, tasks, strict=True))
        ]

    def batches(self, task: Task, epochs: int) -> list[Batch]:
        """All batches of a task, as ``fit`` draws them."""
        with self._randomness(task):
            return [(inputs, targets) for _ in range(epochs) for inputs, targets in self.loader]


@dataclass
class _SideBySide:
    """The models of several participants.

    Attributes:
        participant: one of them, for module, loss and device.
        model: the global model.
        mu: of FedProx.
        stacked: trained parameters by name; the first axis is the participant.
        frozen: parameters that are not trained.
        seen: examples that each has seen.
        losses: sum of its losses by example.
    """

    participant: TorchParticipant
    model: Model
    mu: float
    stacked: dict[str, torch.nn.Parameter]
    frozen: dict[str, torch.Tensor]
    seen: list[int]
    losses: torch.Tensor

    @classmethod
    def of(cls, participant: TorchParticipant, model: Model, count: int, mu: float) -> Self:
        """``count`` copies of the global model."""
        device, stacked, frozen = participant.device, {}, {}
        for name, parameter in participant.module.named_parameters():
            value = as_tensor(model, name).to(device)
            if parameter.requires_grad:
                stacked[name] = torch.nn.Parameter(value.expand(count, *value.shape).clone())
            else:
                frozen[name] = value.clone()
        return cls(participant, model, mu, stacked, frozen, [0] * count, torch.zeros(count, device=device))

    def step(self, batches: Sequence[Batch | None], optimiser: torch.optim.Optimizer) -> None:
        """One optimiser step of each participant that has a batch; the others keep their final state."""
        inputs, targets, there = _padded(batches, self.participant.device)
        optimiser.zero_grad(set_to_none=True)
        losses = vmap(self._loss)(self.stacked, inputs, targets, there)
        torch.autograd.backward(losses.sum())
        self._pull()
        ended = [place for place, batch in enumerate(batches) if batch is None]
        before = {name: values.detach()[ended] for name, values in self.stacked.items()}
        optimiser.step()
        with torch.no_grad():
            for name, values in self.stacked.items():
                values[ended] = before[name]
        sizes = there.sum(dim=1)
        self.losses += losses.detach() * sizes
        self.seen = [seen + int(size) for seen, size in zip(self.seen, sizes.tolist(), strict=True)]

    def _loss(
        self, own: Mapping[str, torch.Tensor], inputs: torch.Tensor, targets: torch.Tensor, there: torch.Tensor
    ) -> torch.Tensor:
        """The mean loss of one participant's batch; padding has weight 0."""
        outputs = functional_call(self.participant.module, {**self.frozen, **own}, (inputs,))
        each = vmap(lambda output, target: self.participant.loss(output[None], target[None]))(outputs, targets)
        return (each * there).sum() / there.sum().clamp(min=1)

    def _pull(self) -> None:
        """FedProx's gradient; see ``proximal_pull``."""
        if self.mu:
            with torch.no_grad():
                for name, values in self.stacked.items():
                    if values.grad is not None:
                        anchor = as_tensor(self.model, name).to(values.device)
                        values.grad.add_(values - anchor, alpha=self.mu)


def _padded(batches: Sequence[Batch | None], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The batches stacked and padded with zeros to the longest; and a float mask, 1 for an example."""
    longest = max(len(batch[0]) for batch in batches if batch is not None)
    shown = next(batch for batch in batches if batch is not None)
    inputs, targets = (part.new_zeros((len(batches), longest, *part.shape[1:])) for part in shown)
    there = torch.zeros(len(batches), longest)
    for place, batch in enumerate(batches):
        if batch is not None:
            size = len(batch[0])
            inputs[place, :size], targets[place, :size], there[place, :size] = batch[0], batch[1], 1.0
    return inputs.to(device), targets.to(device), there.to(device)


def _update(participant: TorchParticipant, side: _SideBySide, place: int, epochs: int, task: Task) -> Update:
    seen = side.seen[place]
    own = {name: values.detach()[place] for name, values in side.stacked.items()}
    weights: dict[str, Any] = {name: to_array(tensor) for name, tensor in {**side.frozen, **own}.items()}
    return Update(
        weights=weights,
        weight=min(seen // epochs or min(seen, 1), task.max_weight),
        metrics={"loss": float(side.losses[place]) / seen} if seen else {},
        partial=seen < epochs * participant.examples,
    )
