"""`[optimiser]` and `[iterate_averaging]`: how the mean update is applied.

``FedAvg`` and the other functions make the section for a job written in Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atoll.server.jobs.section import JobTable
from atoll.settings.section import Hint

OptimiserName = Literal["fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi"]

_ADAPTIVE = ("fedadagrad", "fedadam", "fedyogi")
_USED_BY: dict[str, tuple[str, ...]] = {
    "momentum": ("fedavgm",),
    "nesterov": ("fedavgm",),
    "beta1": _ADAPTIVE,
    "beta2": ("fedadam", "fedyogi"),
    "tau": _ADAPTIVE,
}


class Optimiser(JobTable):
    """How the server applies the mean update (Reddi et al. 2021, "Adaptive Federated Optimization")."""

    name: Annotated[
        OptimiserName,
        Field(description="`fedavg` adds the mean update; the others treat it as a gradient (pseudo-gradient)."),
    ] = "fedavg"
    lr: Annotated[
        float,
        Field(gt=0, le=1000, description="Server learning rate."),
        Hint(default="1.0 for `fedavg` and `fedavgm`, 0.01 for the adaptive ones"),
    ] = Field(default_factory=lambda found: 0.01 if found.get("name") in _ADAPTIVE else 1.0)
    momentum: Annotated[float, Field(ge=0, lt=1, description="`fedavgm`: share of the last step that is kept.")] = 0.9
    nesterov: Annotated[bool, Field(description="`fedavgm`: look one step ahead.")] = False
    beta1: Annotated[float, Field(ge=0, lt=1, description="Adaptive optimisers: decay of the first moment.")] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1, description="`fedadam`, `fedyogi`: decay of the second moment.")] = 0.99
    tau: Annotated[float, Field(gt=0, le=1, description="Adaptive optimisers: degree of adaptivity.")] = 1e-3

    @property
    def settings(self) -> dict[str, float]:
        """The parameters of this optimiser, without those of others."""
        return {"lr": self.lr} | {key: getattr(self, key) for key, names in _USED_BY.items() if self.name in names}

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Refuse parameters of another optimiser."""
        for key, optimisers in _USED_BY.items():
            if self.name not in optimisers:
                yield from self.unused((key,), f"it belongs to {', '.join(optimisers)}, not to {self.name}")


def FedAvg(lr: float = 1.0) -> Optimiser:
    """Add the mean update, times ``lr``."""
    return Optimiser(name="fedavg", lr=lr)


def FedAvgM(lr: float = 1.0, *, momentum: float = 0.9, nesterov: bool = False) -> Optimiser:
    """Server momentum (Hsu et al. 2019, arXiv:1909.06335)."""
    return Optimiser(name="fedavgm", lr=lr, momentum=momentum, nesterov=nesterov)


def FedAdagrad(lr: float = 0.01, *, beta1: float = 0.9, tau: float = 1e-3) -> Optimiser:
    """Adagrad on the mean update."""
    return Optimiser(name="fedadagrad", lr=lr, beta1=beta1, tau=tau)


def FedAdam(lr: float = 0.01, *, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Optimiser:
    """Adam on the mean update."""
    return Optimiser(name="fedadam", lr=lr, beta1=beta1, beta2=beta2, tau=tau)


def FedYogi(lr: float = 0.01, *, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Optimiser:
    """Yogi on the mean update."""
    return Optimiser(name="fedyogi", lr=lr, beta1=beta1, beta2=beta2, tau=tau)


class IterateAveraging(JobTable):
    """A mean of the released models, kept in addition to the newest one (`atoll run model --averaged`).

    It costs no privacy and averages out noise; whether it is better than the last model depends on the job.
    Participants train from the models, not from the mean. The server's evaluator evaluates both; its metrics of the
    mean are named `server/averaged/...`. Only the newest mean is kept, as long as the last model. All models weigh the
    same until their number reaches 1 / (1 - decay); from then on each release multiplies the weights of earlier ones by
    `decay`.
    """

    decay: Annotated[
        float,
        Field(ge=0, le=0.9999, description="0.9 averages about the last ten models, 0.95 the last twenty."),
    ] = 0.9
