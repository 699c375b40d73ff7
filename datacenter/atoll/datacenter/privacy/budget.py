"""Privacy cost of a job's steps, by ``atoll.accounting``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.accounting import Accountant, Steps, TargetUnreachableError, epsilon, least_noise
from atoll.datacenter.errors import LayoutError, MissingExtraError

if TYPE_CHECKING:
    from atoll.datacenter.job.privacy import PrivacySection


def opacus_module(name: str) -> Any:
    """Import a module of Opacus.

    Raises:
        MissingExtraError: if Opacus is not installed.
    """
    import importlib  # noqa: PLC0415  # used only here

    try:
        return importlib.import_module(f"opacus.{name}")
    except ModuleNotFoundError as error:
        raise MissingExtraError("Opacus", "privacy", "[privacy]") from error


@dataclass(frozen=True)
class Budget:
    """The mechanism of each step, and its total cost.

    Neighbouring data sets differ in the presence of one sequence. Each step includes each sequence independently with
    probability ``sample_rate`` (Poisson sampling).

    Attributes:
        noise_multiplier: standard deviation of the noise over the clipping norm.
        sample_rate: in (0, 1].
        delta: delta of (epsilon, delta).
        accountant: ``prv`` or ``rdp``.
    """

    noise_multiplier: float
    sample_rate: float
    delta: float
    accountant: Accountant

    @classmethod
    def of(cls, section: PrivacySection, sample_rate: float, steps: int) -> Budget:
        """Return the job's budget; for a given epsilon, with the least noise (to a ten-thousandth) that keeps it.

        Raises:
            LayoutError: if no noise keeps the job within its epsilon.
            MissingExtraError: if SciPy is not installed.
        """
        target, delta, accountant = section.epsilon, section.delta, section.accountant
        if target is None:
            return cls(section.noise_multiplier or 0.0, sample_rate, delta, accountant)

        def cost(noise: float) -> float:
            return cls(noise, sample_rate, delta, accountant).epsilon(steps)

        try:
            return cls(least_noise(cost, target), sample_rate, delta, accountant)
        except TargetUnreachableError as error:
            raise LayoutError(
                f"privacy.epsilon = {target} with delta = {delta} cannot be kept over {steps} steps with sample rate "
                f"{sample_rate:.3g}: {error}; choose a larger epsilon or delta, or fewer steps"
            ) from error

    def epsilon(self, steps: int) -> float:
        """Return the epsilon spent after this many steps; infinite without noise. Takes up to seconds; cached.

        Raises:
            MissingExtraError: if SciPy is not installed.
        """
        try:
            return epsilon((Steps(self.noise_multiplier, self.sample_rate, steps),), self.delta, self.accountant)
        except ModuleNotFoundError as error:
            raise MissingExtraError("SciPy", "privacy", "[privacy]") from error

    @property
    def tag(self) -> str:
        """Identifies the mechanism: a checkpoint of another one is refused, because its steps have another cost."""
        return f"{self.noise_multiplier:.6g}/{self.sample_rate:.6g}"
