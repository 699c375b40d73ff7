"""Everything that a job needs to go on as if nothing had happened, by names that do not depend on the layout.

=============================  ========================================================================
name                           what
=============================  ========================================================================
``model.<parameter>``          weights and buffers
``optimiser.<parameter>.<x>``  states of the optimiser; its settings come from the job file
``rank.<r>.<extra>.<x>``       what one rank has for itself; only the same layout takes it over
=============================  ========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

if TYPE_CHECKING:
    from atoll.datacenter.train.scale import LossScale

MODEL, OPTIMISER, RANK = "model.", "optimiser.", "rank."

Value: TypeAlias = int | float | str
Values: TypeAlias = dict[str, dict[str, Value]]
"""Numbers and words of a state, by part; the same on every rank; fits JSON."""


class Position(Protocol):
    """Where the next step's data lies; ``data.Loader`` is one."""

    def state(self) -> Mapping[str, int | str]:
        """The position; the same on every rank."""
        ...

    def load(self, state: Mapping[str, object]) -> None:
        """Go on from a position."""
        ...


class Extra(Protocol):
    """Tensors that this rank has for itself, e.g. what gradient compression has left over."""

    def state_dict(self) -> Mapping[str, Tensor]:
        """The tensors, by name."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take them back: the same names and shapes."""
        ...


class RandomState:
    """PyTorch's generators of this process, as an extra."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def state_dict(self) -> Mapping[str, Tensor]:
        """``cpu`` and, on a GPU, ``device``: uint8."""
        found = {"cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            found["device"] = torch.cuda.get_rng_state(self._device)
        return found

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Set those generators that are there."""
        if "cpu" in state:
            torch.set_rng_state(state["cpu"])
        if "device" in state and self._device.type == "cuda":
            torch.cuda.set_rng_state(state["device"], self._device)


@dataclass
class TrainingState:
    """What a checkpoint keeps of this rank. Live: reading it reads the model, loading into it changes the model.

    Attributes:
        parts: the model, or this rank's stages of it; names are disjoint over stages.
        optimiser: of all of their parameters.
        scale: of the loss.
        data: where the next step's data lies.
        extras: what this rank has for itself, by a name without dots.
        places: further positions, the same on every rank, by name; one that a checkpoint lacks stays as it is.
        step: optimiser steps made.
        tokens: counted over all of them.
    """

    parts: Sequence[nn.Module]
    optimiser: torch.optim.Optimizer
    scale: LossScale
    data: Position
    extras: dict[str, Extra] = field(default_factory=dict)
    places: dict[str, Position] = field(default_factory=dict)
    step: int = 0
    tokens: int = 0

    def model_tensors(self) -> dict[str, Tensor]:
        """Weights and buffers, not copied."""
        found: dict[str, Tensor] = {}
        for part in self.parts:
            found |= {MODEL + name: _tensor(name, value) for name, value in get_model_state_dict(part).items()}
        return found

    def optimiser_tensors(self, *, make: bool) -> dict[str, Tensor]:
        """States of the optimiser, not copied.

        Args:
            make: give an optimiser that has not made a step states first, for a checkpoint to fill; else it has none.
        """
        if not self.optimiser.state and not make:
            return {}
        # Names are prefixed with the part's number, for one optimiser may have several parts; it is taken off again.
        states = cast(
            dict[str, dict[str, object]], get_optimizer_state_dict(nn.ModuleList(self.parts), self.optimiser)["state"]
        )
        return {
            f"{OPTIMISER}{name.partition('.')[2]}.{key}": _tensor(f"{name}.{key}", value)
            for name, entries in states.items()
            for key, value in entries.items()
            if value is not None  # SGD without momentum keeps a place for it
        }

    def rank_tensors(self, rank: int) -> dict[str, Tensor]:
        """What this rank has for itself."""
        return {
            f"{RANK}{rank}.{extra}.{key}": value.detach()
            for extra, holder in self.extras.items()
            for key, value in holder.state_dict().items()
        }

    def load_rank_tensors(self, rank: int, found: Mapping[str, Tensor]) -> None:
        """Give each extra back what ``rank_tensors`` took from it."""
        for extra, holder in self.extras.items():
            prefix = f"{RANK}{rank}.{extra}."
            mine = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
            if mine:
                holder.load_state_dict(mine)

    def values(self) -> Values:
        """Numbers and words."""
        return {
            "training": {"step": self.step, "tokens": self.tokens},
            "scale": {"scale": self.scale.scale, "good_steps": self.scale.good_steps},
            "data": dict(self.data.state()),
            **{name: dict(place.state()) for name, place in self.places.items()},
        }

    def load_values(self, values: Values) -> None:
        """Take them back.

        Raises:
            DataError: if the data is other than that which the job began with.
        """
        self.data.load(values["data"])
        for name in self.places.keys() & values.keys():
            self.places[name].load(values[name])
        self.scale.scale = float(values["scale"]["scale"])
        self.scale.good_steps = int(values["scale"]["good_steps"])
        self.step, self.tokens = int(values["training"]["step"]), int(values["training"]["tokens"])


def _tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is {type(value).__name__}: only tensors can be kept as state of a model or optimiser")
    return value.detach()
