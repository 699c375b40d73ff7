"""Scaling laws: the loss that a model of N parameters reaches after D tokens, and the best N and D for a budget.

A budget is in FLOPs, ``C = 6 N D``: a forward and a backward pass are 6 FLOPs for each parameter and token (Kaplan et
al. 2020, section 2.1; attention's own products are left out).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from atoll.datacenter.errors import DatacenterError

FLOPS_PER_PARAMETER_AND_TOKEN = 6
PF_DAY = 1e15 * 86_400
"""FLOPs of one petaFLOP/s for a day."""


class ScalingError(DatacenterError):
    """Input for which no scaling law can be evaluated or fitted."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best model for a budget.

    Attributes:
        flops: the budget.
        parameters: N.
        tokens: D = C / (6 N).
        loss: predicted, in nats per token.
    """

    flops: float
    parameters: float
    tokens: float
    loss: float

    @property
    def tokens_per_parameter(self) -> float:
        """D / N."""
        return self.tokens / self.parameters


class Law(Protocol):
    """A scaling law."""

    @property
    def source(self) -> str:
        """Paper and equation, or the runs that it was fitted to."""
        ...

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the loss in nats per token."""
        ...

    def optimum(self, flops: float) -> Optimum:
        """Return the best model for this budget."""
        ...


@dataclass(frozen=True, slots=True)
class ParametricLaw:
    """``L(N, D) = E + A / N^alpha + B / D^beta`` (Hoffmann et al. 2022, equation 2).

    Attributes:
        irreducible: E, the least possible loss in nats per token.
        a: factor of the parameters' term.
        b: factor of the tokens' term.
        alpha: exponent of the parameters.
        beta: exponent of the tokens.
        source: origin of the constants.
    """

    irreducible: float
    a: float
    b: float
    alpha: float
    beta: float
    source: str

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the loss in nats per token."""
        return float(self.irreducible + self.a / parameters**self.alpha + self.b / tokens**self.beta)

    def optimum(self, flops: float) -> Optimum:
        """``N = G (C/6)^(beta/(alpha+beta))`` with ``G = (alpha A / (beta B))^(1/(alpha+beta))``: their equation 4."""
        total = self.alpha + self.beta
        scale = (self.alpha * self.a / (self.beta * self.b)) ** (1 / total)
        parameters = scale * (_budget(flops) / FLOPS_PER_PARAMETER_AND_TOKEN) ** (self.beta / total)
        tokens = flops / (FLOPS_PER_PARAMETER_AND_TOKEN * parameters)
        return Optimum(flops, parameters, tokens, self.loss(parameters, tokens))


@dataclass(frozen=True, slots=True)
class KaplanLaw:
    """``L(N, D) = ((N_c/N)^(alpha_N/alpha_D) + D_c/D)^alpha_D`` (Kaplan et al. 2020, equation 1.5).

    N is without embeddings. The constants are those of their table 2; the best size, ``N = 1.3e9 (C / PF-day)^0.73``,
    is from their table 6. They trained every model on one schedule regardless of its tokens; that is why the best
    models of this law are larger and see fewer tokens than Hoffmann's.
    """

    critical_parameters: float = 6.4e13
    critical_tokens: float = 1.8e13
    alpha_parameters: float = 0.076
    alpha_tokens: float = 0.103
    best_at_pf_day: float = 1.3e9
    best_exponent: float = 0.73
    source: str = "Kaplan et al. 2020, tables 2 and 6; N without embeddings"

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the loss in nats per token."""
        size = (self.critical_parameters / parameters) ** (self.alpha_parameters / self.alpha_tokens)
        return float((size + self.critical_tokens / tokens) ** self.alpha_tokens)

    def optimum(self, flops: float) -> Optimum:
        """Return their best size; the tokens use the rest of the budget."""
        parameters = self.best_at_pf_day * (_budget(flops) / PF_DAY) ** self.best_exponent
        tokens = flops / (FLOPS_PER_PARAMETER_AND_TOKEN * parameters)
        return Optimum(flops, parameters, tokens, self.loss(parameters, tokens))


LAWS: Mapping[str, Law] = MappingProxyType(
    {
        "kaplan": KaplanLaw(),
        "chinchilla": ParametricLaw(
            1.69, 406.4, 410.7, 0.34, 0.28, "Hoffmann et al. 2022, equation 10 (approach 3), as printed"
        ),
        "besiroglu": ParametricLaw(
            1.8172, 482.01, 2085.43, 0.3478, 0.3658, "Besiroglu et al. 2024, table 1: approach 3 fitted anew"
        ),
    }
)
"""Published laws. Their losses are on their own data and tokenizers: compare within a law, not across laws."""


def _budget(flops: float) -> float:
    if not 1.0 <= flops < float("inf"):
        raise ScalingError(f"a budget of {flops:g} FLOPs: allowed is a finite number of at least 1")
    return flops
