"""``[federation]``: how a job takes part in a federation; see ``atoll silo join``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atoll.settings import Hint, Section

INNER_STEPS = "inner_steps"
"""The server's training setting that takes precedence over the job's own."""


class FederationSection(Section):
    """Settings of ``atoll silo join``: steps between two exchanges with the server, and the weight of an update."""

    inner_steps: Annotated[
        int,
        Field(
            ge=1,
            le=1 << 20,
            description="Steps between two exchanges with the server (H of DiLoCo). If the server's job has "
            "`training.inner_steps`, that value is used instead, up to `max_inner_steps`.",
        ),
    ] = 500
    max_inner_steps: Annotated[
        int | None,
        Field(
            ge=1,
            le=1 << 20,
            description="Rounds in which the server asks for more steps are declined. The weight of this many steps is "
            "the largest that an update of this silo can have; the silo declares it to the server.",
        ),
        Hint(default="`inner_steps`"),
    ] = None
    overlap_steps: Annotated[
        int,
        Field(
            ge=0,
            le=1 << 20,
            description="Inner steps that continue while an update travels and the next model is awaited (streaming "
            "DiLoCo); they count as steps of the next round. Costs a copy of what is sent.",
        ),
    ] = 0
    mixing: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="With `overlap_steps`: share of the local weights that remains when global weights arrive "
            "(alpha of streaming DiLoCo).",
        ),
    ] = 0.5
    weight: Annotated[
        Literal["tokens", "sequences"],
        Field(
            description="Unit of an update's weight: tokens trained on, or sequences. All silos and clients of a "
            "federation must use the same unit.",
        ),
    ] = "tokens"
    scratch: Annotated[
        str | None,
        Field(
            min_length=1,
            description="Folder, relative to the job file, in which each rank keeps its part of the model that the "
            "round started from. Choose a fast local disk.",
        ),
        Hint(default="a temporary folder"),
    ] = None

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Find mixing without overlap, and step counts that no round can have."""
        if not self.overlap_steps:
            yield from self.unused(("mixing",), "overlap_steps is 0")
        if self.overlap_steps >= self.inner_steps:
            yield "overlap_steps", f"is not below inner_steps {self.inner_steps}: a round would be over as it begins"
        if self.inner_steps > self.most_inner_steps:
            yield "inner_steps", f"is above max_inner_steps {self.max_inner_steps}"

    @property
    def most_inner_steps(self) -> int:
        """Maximum number of steps of a round."""
        return self.inner_steps if self.max_inner_steps is None else self.max_inner_steps
