"""``[privacy]``: differential privacy of the single sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atoll.client.privacy.samples import NAME_PATTERN
from atoll.settings import Hint, Section


class PrivacySection(Section):
    """DP-SGD (Abadi et al. 2016): each sequence's gradient is clipped, and noise is added to their sum."""

    noise_multiplier: Annotated[
        float | None, Field(ge=0, le=1e6, description="Standard deviation of the noise over `max_grad_norm`.")
    ] = None
    epsilon: Annotated[
        float | None, Field(gt=0, description="The most that the whole job may spend; the noise is chosen to fit.")
    ] = None
    delta: Annotated[
        float, Field(gt=0, lt=1, description="Chance that epsilon does not hold; well below 1 / sequences.")
    ] = 1e-6
    max_grad_norm: Annotated[float, Field(gt=0, description="What a sequence's gradient is clipped to.")] = 1.0
    mode: Annotated[
        Literal["ghost", "hooks"],
        Field(
            description="`ghost`: norms without the gradients of single sequences, by a second backward pass (Li et "
            "al. 2022). `hooks`: those gradients are kept, a model's worth for each sequence of a micro-batch (`ddp`)."
        ),
    ] = "ghost"
    accountant: Annotated[
        Literal["prv", "rdp"],
        Field(description="What adds up epsilon: `prv` is tighter (Gopi et al. 2021), `rdp` older (Mironov 2017)."),
    ] = "prv"
    limit: Annotated[
        float | None,
        Field(
            gt=0,
            description="In a federation: the most epsilon that all rounds of all runs may ever spend on the data, by "
            "the silo's own ledger; rounds beyond it are declined.",
        ),
        Hint(default="`epsilon`"),
    ] = None
    data: Annotated[
        str,
        Field(
            pattern=f"^{NAME_PATTERN}$",
            description="In a federation: name of the data set, by which its ledger is called: "
            "`privacy/samples-<data>.json` in the silo's state directory.",
        ),
    ] = "data"

    @property
    def most(self) -> float | None:
        """The limit in a federation; None if the job names none."""
        return self.epsilon if self.limit is None else self.limit

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Noise given twice, or not at all."""
        if (self.noise_multiplier is None) == (self.epsilon is None):
            yield "noise_multiplier", "give either noise_multiplier or epsilon"
