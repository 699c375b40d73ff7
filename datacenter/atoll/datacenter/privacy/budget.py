"""What a job's steps cost, by Opacus' accountants."""

from __future__ import annotations

import functools
import logging
import warnings
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from atoll.datacenter.errors import LayoutError, MissingExtraError

if TYPE_CHECKING:
    from atoll.datacenter.job.privacy import PrivacySection

log = logging.getLogger(__name__)


def opacus_module(name: str) -> Any:
    """A module of Opacus.

    Raises:
        MissingExtraError: without Opacus.
    """
    import importlib  # noqa: PLC0415  # beside what it is for

    try:
        return importlib.import_module(f"opacus.{name}")
    except ModuleNotFoundError as error:
        raise MissingExtraError("Opacus", "privacy", "[privacy]") from error


@dataclass(frozen=True)
class Budget:
    """The mechanism of each step, and what it adds up to.

    Neighbouring data sets differ by one sequence that is there or not. Each step takes each sequence with chance
    ``sample_rate``, by itself (Poisson sampling).

    Attributes:
        noise_multiplier: standard deviation of the noise over the clipping norm.
        sample_rate: in (0, 1].
        delta: chance that epsilon does not hold.
        accountant: ``prv`` or ``rdp``.
    """

    noise_multiplier: float
    sample_rate: float
    delta: float
    accountant: str

    @classmethod
    def of(cls, section: PrivacySection, sample_rate: float, steps: int) -> Budget:
        """The job's; for a given epsilon the least noise (to 0.01 of epsilon) with which all steps stay within it.

        Raises:
            LayoutError: if no noise keeps the job within its epsilon.
        """
        if section.noise_multiplier is not None:
            return cls(section.noise_multiplier, sample_rate, section.delta, section.accountant)
        accountants = opacus_module("accountants.utils")
        try:
            with _quiet():
                noise = accountants.get_noise_multiplier(
                    target_epsilon=section.epsilon,
                    target_delta=section.delta,
                    sample_rate=sample_rate,
                    steps=steps,
                    accountant=section.accountant,
                )
        except ValueError as error:
            raise LayoutError(
                f"privacy.epsilon = {section.epsilon} with delta = {section.delta} cannot be kept over {steps} steps "
                f"with sample rate {sample_rate:.3g}: {error}"
            ) from error
        return cls(float(noise), sample_rate, section.delta, section.accountant)

    def epsilon(self, steps: int) -> float:
        """Spent after so many steps; infinite without noise."""
        return _epsilon(self, steps) if steps else 0.0

    @property
    def tag(self) -> str:
        """Tells mechanisms apart: a checkpoint of another one is refused, for its steps cost something else."""
        return f"{self.noise_multiplier:.6g}/{self.sample_rate:.6g}"


@functools.lru_cache(maxsize=256)
def _epsilon(budget: Budget, steps: int) -> float:
    if budget.noise_multiplier == 0:
        return inf
    accountant = opacus_module("accountants").create_accountant(mechanism=budget.accountant)
    accountant.history = [(budget.noise_multiplier, budget.sample_rate, steps)]
    with _quiet():
        return float(accountant.get_epsilon(delta=budget.delta))


def _quiet() -> warnings.catch_warnings[None]:
    """Opacus warns of orders of Rényi divergence that turn out not to be the best."""
    return warnings.catch_warnings(action="ignore")
