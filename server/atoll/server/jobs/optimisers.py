"""The server optimisers by name, for jobs written in Python (Reddi et al. 2021, arXiv:2003.00295).

Each makes the ``[optimiser]`` section of the job file, which documents the parameters.
"""

from __future__ import annotations

from atoll.server.jobs.optimiser_section import Optimiser


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
