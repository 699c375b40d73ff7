"""Parameters and FLOPs of a model as the record of a run states them; ``sizing`` counts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.datacenter.sizing.flops import (
    PER_FROZEN_WEIGHT,
    PER_WEIGHT,
    attention_flops_per_token,
    flops_per_token,
)
from atoll.datacenter.sizing.shape import shape_of

if TYPE_CHECKING:
    from atoll.datacenter.job.model import ModelSection

_WEIGHTS = f"{PER_WEIGHT} * active matrix weights"
_FROZEN = f"{PER_FROZEN_WEIGHT} * frozen active matrix weights + {PER_WEIGHT} * adapter weights"
_ATTENTION = "12 * layers * heads * head_dim * sequence"


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """FLOPs of one token, and parameters of the model.

    Attributes:
        per_token: FLOPs of forward and backward pass.
        formula: formula of ``per_token``, with the numbers.
        parameters: parameters of the whole model, including all experts and adapters.
        active_parameters: parameters that one token passes through.
    """

    per_token: float
    formula: str
    parameters: int
    active_parameters: int


def llama_flops(model: ModelSection, sequence: int) -> ModelFlops:
    """Return the FLOPs of a Llama-style model, dense or with experts, with or without adapters.

    Raises:
        LayoutError: for models of other kinds.
    """
    shape = shape_of(model)
    matrices, adapters = int(shape.active), int(shape.trained_adapters)
    per_token, mixing = flops_per_token(shape, sequence), int(attention_flops_per_token(shape, sequence))
    if shape.frozen:
        weights = f"{_FROZEN} ({PER_FROZEN_WEIGHT} * {matrices:,} + {PER_WEIGHT} * {adapters:,})"
    else:
        weights = f"{_WEIGHTS} {matrices:,}"
    parameters = int(shape.parameters) + adapters
    return ModelFlops(
        per_token=float(per_token),
        formula=f"{weights} + {_ATTENTION} ({mixing:,}) = {int(per_token):,}",
        parameters=parameters,
        active_parameters=parameters - int(shape.sizes.layers * shape.idle),
    )
