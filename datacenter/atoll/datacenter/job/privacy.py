"""``[privacy]``: sample-level differential privacy; a sample is one sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atoll.accounting import DATA_NAME_PATTERN
from atoll.settings import Hint, Section


class PrivacySection(Section):
    """DP-SGD (Abadi et al. 2016): each sequence's gradient is clipped, and noise is added to the sum."""

    noise_multiplier: Annotated[
        float | None, Field(ge=0, le=1e6, description="Standard deviation of the noise divided by `max_grad_norm`.")
    ] = None
    epsilon: Annotated[
        float | None, Field(gt=0, description="Privacy budget of the whole job; the noise is chosen to fit it.")
    ] = None
    delta: Annotated[float, Field(gt=0, lt=1, description="Delta of (epsilon, delta); well below 1 / sequences.")] = (
        1e-6
    )
    max_grad_norm: Annotated[float, Field(gt=0, description="Norm that a sequence's gradient is clipped to.")] = 1.0
    mode: Annotated[
        Literal["ghost", "hooks"],
        Field(
            description="`ghost`: norms without materialising per-sequence gradients, by a second backward pass (Li et "
            "al. 2022). `hooks`: per-sequence gradients are kept, one model's worth for each sequence of a "
            "micro-batch (`ddp`)."
        ),
    ] = "ghost"
    accountant: Annotated[
        Literal["prv", "rdp"],
        Field(description="Accountant of epsilon: `prv` is tighter (Gopi et al. 2021), `rdp` older (Mironov 2017)."),
    ] = "prv"
    limit: Annotated[
        float | None,
        Field(
            gt=0,
            description="Limit on the epsilon that all jobs, and all rounds of all runs, together may spend on the "
            "data, by its ledger. Rounds beyond it are declined, and jobs refused.",
        ),
        Hint(default="in a federation `epsilon`, else none"),
    ] = None
    data: Annotated[
        str,
        Field(
            pattern=f"^{DATA_NAME_PATTERN}$",
            description="Name of the data set. Its ledger is `privacy/samples-<data>.json` beside the job file; in a "
            "federation in the silo's state directory.",
        ),
    ] = "data"
    ledger: Annotated[
        str | None,
        Field(min_length=1, description="Another file for the ledger, relative to the job file."),
    ] = None

    @property
    def most(self) -> float | None:
        """Limit on epsilon in a federation; None if the job sets none."""
        return self.epsilon if self.limit is None else self.limit

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Find noise given twice or never."""
        if (self.noise_multiplier is None) == (self.epsilon is None):
            yield "noise_multiplier", "give either noise_multiplier or epsilon"
