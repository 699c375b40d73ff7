"""What a job's steps cost, by ``atoll.accounting``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.accounting import Accountant, Steps, UnreachableError, epsilon, least_noise
from atoll.datacenter.errors import LayoutError, MissingExtraError

if TYPE_CHECKING:
    from atoll.datacenter.job.privacy import PrivacySection


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
    accountant: Accountant

    @classmethod
    def of(cls, section: PrivacySection, sample_rate: float, steps: int) -> Budget:
        """The job's; for a given epsilon the least noise (to a ten-thousandth) with which all steps stay within it.

        Raises:
            LayoutError: if no noise keeps the job within its epsilon.
            MissingExtraError: without SciPy.
        """
        target, delta, accountant = section.epsilon, section.delta, section.accountant
        if target is None:
            return cls(section.noise_multiplier or 0.0, sample_rate, delta, accountant)

        def cost(noise: float) -> float:
            return cls(noise, sample_rate, delta, accountant).epsilon(steps)

        try:
            return cls(least_noise(cost, target), sample_rate, delta, accountant)
        except UnreachableError as error:
            raise LayoutError(
                f"privacy.epsilon = {target} with delta = {delta} cannot be kept over {steps} steps with sample rate "
                f"{sample_rate:.3g}: {error}; choose a larger epsilon or delta, or fewer steps"
            ) from error

    def epsilon(self, steps: int) -> float:
        """Spent after so many steps; infinite without noise. Takes up to seconds; the latest answers are kept.

        Raises:
            MissingExtraError: without SciPy.
        """
        try:
            return epsilon((Steps(self.noise_multiplier, self.sample_rate, steps),), self.delta, self.accountant)
        except ModuleNotFoundError as error:
            raise MissingExtraError("SciPy", "privacy", "[privacy]") from error

    @property
    def tag(self) -> str:
        """Tells mechanisms apart: a checkpoint of another one is refused, for its steps cost something else."""
        return f"{self.noise_multiplier:.6g}/{self.sample_rate:.6g}"
