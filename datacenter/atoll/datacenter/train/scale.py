"""Dynamic loss scaling for float16 (Micikevicius et al. 2018, section 3.2).

PyTorch's ``GradScaler`` looks for infinities on each rank separately; over pipeline stages and shards of several meshes
its ranks would diverge. The gradient norm is already global, so it decides for all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atoll.datacenter.errors import TrainingError

GROWTH = 2.0
BACKOFF = 0.5
GROWTH_STEPS = 2000
"""Same as in ``torch.amp.GradScaler``."""
MIN_SCALE = 2.0**-14


@dataclass(slots=True)
class LossScale:
    """Factor of the loss.

    Attributes:
        scale: the factor; 1 for formats that need none.
        dynamic: whether it changes.
        good_steps: steps since the last change.
    """

    scale: float
    dynamic: bool
    good_steps: int = 0

    def update(self, *, finite: bool) -> None:
        """Halve the scale after a step with a gradient that is not finite; double it after 2,000 finite ones.

        Raises:
            TrainingError: if gradients stay infinite at the smallest scale.
        """
        if not self.dynamic:
            return
        if not finite:
            self.scale *= BACKOFF
            self.good_steps = 0
            if self.scale < MIN_SCALE:
                raise TrainingError(
                    f"gradients are not finite at a loss scale of {self.scale:g}: lower the learning rate"
                )
            return
        self.good_steps += 1
        if self.good_steps == GROWTH_STEPS:
            self.scale *= GROWTH
            self.good_steps = 0

    def state(self) -> Mapping[str, float | int]:
        """Return what a checkpoint keeps."""
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load(self, state: Mapping[str, float | int | str]) -> None:
        """Continue from what ``state`` returned."""
        self.scale, self.good_steps = float(state["scale"]), int(state["good_steps"])
