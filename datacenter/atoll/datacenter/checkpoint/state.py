"""Everything that a job needs to continue as if it had not stopped, under names that do not depend on the layout.

=============================  ========================================================================
name                           what
=============================  ========================================================================
``model.<parameter>``          weights and buffers
``optimiser.<parameter>.<x>``  states of the optimiser; its settings come from the job file
``rank.<r>.<extra>.<x>``       tensors of one rank; only usable with the same layout
=============================  ========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

from atoll.datacenter.mesh.shards import unwrapped

MODEL, OPTIMISER, RANK = "model.", "optimiser.", "rank."

Value: TypeAlias = int | float | str
Values: TypeAlias = dict[str, dict[str, Value]]
"""Numbers and words of a state, by part; the same on every rank; fits JSON."""


class Stateful(Protocol):
    """Numbers and strings that a checkpoint keeps, the same on every rank; ``data.Loader`` is one."""

    def state(self) -> Mapping[str, Value]:
        """Return the current values."""
        ...

    def load(self, state: Mapping[str, Value]) -> None:
        """Continue from values that ``state`` returned."""
        ...


class Extra(Protocol):
    """Tensors that only this rank has, e.g. the residuals of gradient compression."""

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return the tensors by name."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the tensors: same names and shapes."""
        ...


class RandomState:
    """PyTorch's random generators of this process, as an extra."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return ``cpu`` and, on a GPU, ``device``: uint8."""
        found = {"cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            found["device"] = torch.cuda.get_rng_state(self._device)
        return found

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the generators that this process has."""
        if "cpu" in state:
            torch.set_rng_state(state["cpu"])
        if "device" in state and self._device.type == "cuda":
            torch.cuda.set_rng_state(state["device"], self._device)


@dataclass
class TrainingState:
    """The state of this rank that a checkpoint saves. Live: reading it reads the model, loading it changes the model.

    Attributes:
        parts: the model, or this rank's stages of it; names are unique over stages.
        optimiser: optimiser of all their parameters.
        scale: loss scale.
        data: position of the next step's data.
        extras: tensors that only this rank has, by a name without dots.
        stateful: further values, by name; a value that a checkpoint lacks stays unchanged.
        step: number of optimiser steps.
        tokens: tokens counted over all steps.
    """

    parts: Sequence[nn.Module]
    optimiser: torch.optim.Optimizer
    scale: Stateful
    data: Stateful
    extras: dict[str, Extra] = field(default_factory=dict)
    stateful: dict[str, Stateful] = field(default_factory=dict)
    step: int = 0
    tokens: int = 0

    def model_tensors(self) -> dict[str, Tensor]:
        """Return weights and buffers, not copied."""
        found: dict[str, Tensor] = {}
        for part in self.parts:
            found |= {MODEL + name: _tensor(name, value) for name, value in get_model_state_dict(part).items()}
        return found

    def optimiser_tensors(self, *, make: bool) -> dict[str, Tensor]:
        """Return states of the optimiser, not copied.

        Args:
            make: whether to create states, for a checkpoint to fill, if the optimiser has not taken a step yet.
        """
        if not self.optimiser.state and not make:
            return {}
        # Names get the part's number as prefix, as one optimiser may have several parts; it is removed again below.
        states = cast(
            dict[str, dict[str, object]], get_optimizer_state_dict(nn.ModuleList(self.parts), self.optimiser)["state"]
        )
        return {
            f"{OPTIMISER}{name.partition('.')[2]}.{key}": _tensor(f"{name}.{key}", value)
            for name, entries in states.items()
            for key, value in entries.items()
            if value is not None  # SGD without momentum has an entry for it
        }

    def rank_tensors(self, rank: int) -> dict[str, Tensor]:
        """Return the tensors that only this rank has."""
        return {
            f"{RANK}{rank}.{extra}.{key}": value.detach()
            for extra, holder in self.extras.items()
            for key, value in holder.state_dict().items()
        }

    def load_rank_tensors(self, rank: int, found: Mapping[str, Tensor]) -> None:
        """Restore what ``rank_tensors`` returned."""
        for extra, holder in self.extras.items():
            prefix = f"{RANK}{rank}.{extra}."
            mine = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
            if mine:
                holder.load_state_dict(mine)

    def values(self) -> Values:
        """Return the state that is not tensors: numbers and strings."""
        return {
            "training": {"step": self.step, "tokens": self.tokens},
            "scale": dict(self.scale.state()),
            "data": dict(self.data.state()),
            **{name: dict(one.state()) for name, one in self.stateful.items()},
        }

    def load_values(self, values: Values) -> None:
        """Restore what ``values`` returned.

        Raises:
            DataError: if the data differs from what the job began with.
        """
        self.data.load(values["data"])
        for name in self.stateful.keys() & values.keys():
            self.stateful[name].load(values[name])
        self.scale.load(values["scale"])
        self.step, self.tokens = int(values["training"]["step"]), int(values["training"]["tokens"])


def _tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is {type(value).__name__}: only tensors can be kept as state of a model or optimiser")
    return unwrapped(value)
