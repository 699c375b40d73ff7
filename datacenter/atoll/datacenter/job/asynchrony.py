"""``[asynchrony]``: training in which ranks do not wait for each other at every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atoll.settings import Section


class AsynchronySection(Section):
    """Asynchronous updates instead of a gradient sum at every step: each rank is a worker with a whole model.

    `job.steps` then counts the steps of each worker on its share of the global batch. Other layouts are not available.
    """

    method: Annotated[
        Literal["parameter_server", "hogwild"],
        Field(
            description="`parameter_server`: rank 0 keeps the parameters, the other ranks pull and push (Ho et al. "
            "2013). `hogwild`: processes of one machine share parameters in memory without locks (Niu et al. 2011); "
            "CPU only."
        ),
    ] = "parameter_server"
    staleness: Annotated[
        int, Field(ge=0, le=1 << 20, description="Steps that a worker may be ahead of the slowest; 0: none.")
    ] = 1
    apply: Annotated[
        Literal["arrival", "clock"],
        Field(
            description="`arrival`: each update is a step of the optimiser. `clock`: the updates of all workers for "
            "one step are applied together; with `staleness` 0 that is synchronous training."
        ),
    ] = "arrival"

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Find settings that belong to the other method."""
        if self.method == "hogwild":
            yield from self.unused(("staleness", "apply"), 'method = "hogwild"')
