"""``[federation]``: how the job takes part in a federation, see ``atoll silo join``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atoll.settings import Hint, Section

INNER_STEPS = "inner_steps"
"""Name of the server's training setting that goes before the job's own."""


class FederationSection(Section):
    """What ``atoll silo join`` adds to a job: steps between two exchanges, and what they count for."""

    inner_steps: Annotated[
        int,
        Field(
            ge=1,
            le=1 << 20,
            description="Steps between two exchanges with the server (H of DiLoCo). A server whose job has "
            "`training.inner_steps` goes first, up to `max_inner_steps`.",
        ),
    ] = 500
    max_inner_steps: Annotated[
        int | None,
        Field(
            ge=1,
            le=1 << 20,
            description="A server that asks for more steps is refused. What this many make is the weight that the silo "
            "declares, the most that an update of it can count for.",
        ),
        Hint(default="`inner_steps`"),
    ] = None
    overlap_steps: Annotated[
        int,
        Field(
            ge=0,
            le=1 << 20,
            description="Inner steps that go on while an update travels and the next model is awaited (streaming "
            "DiLoCo); they count as the next round's. Costs a copy of what is sent.",
        ),
    ] = 0
    mixing: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="With `overlap_steps`: share of the local weights that stays when global ones arrive (alpha of "
            "streaming DiLoCo).",
        ),
    ] = 0.5
    weight: Annotated[
        Literal["tokens", "sequences"],
        Field(
            description="What an update counts for: tokens trained on, or sequences. The same unit in all silos and "
            "clients of a federation."
        ),
    ] = "tokens"
    scratch: Annotated[
        str | None,
        Field(
            min_length=1,
            description="Folder, relative to the job file, where each rank keeps a file with its part of the model "
            "that a round starts from: a fast disk of the machine.",
        ),
        Hint(default="a temporary folder"),
    ] = None

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Mixing without overlap; steps that no round has."""
        if not self.overlap_steps:
            yield from self.unused(("mixing",), "overlap_steps is 0")
        if self.overlap_steps >= self.inner_steps:
            yield "overlap_steps", f"is not below inner_steps {self.inner_steps}: a round would be over as it begins"
        if self.inner_steps > self.most_inner_steps:
            yield "inner_steps", f"is above max_inner_steps {self.max_inner_steps}"

    @property
    def most_inner_steps(self) -> int:
        """The most steps that a round may have."""
        return self.inner_steps if self.max_inner_steps is None else self.max_inner_steps
