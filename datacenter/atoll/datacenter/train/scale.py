"""Dynamic loss scaling for float16 (Micikevicius et al. 2018, section 3.2).

PyTorch's ``GradScaler`` looks for infinities on each rank by itself; over pipeline stages and shards of several meshes
its ranks would part ways. The gradient norm is global already, so one look at it decides for all.
"""

from __future__ import annotations

from dataclasses import dataclass

from atoll.datacenter.errors import TrainingError

GROWTH = 2.0
BACKOFF = 0.5
GROWTH_STEPS = 2000
"""As ``torch.amp.GradScaler``."""
MIN_SCALE = 2.0**-14


@dataclass(slots=True)
class LossScale:
    """What the loss is multiplied by.

    Attributes:
        scale: the factor; 1 for formats that need none.
        dynamic: whether it moves.
        good_steps: since it last moved.
    """

    scale: float
    dynamic: bool
    good_steps: int = 0

    def update(self, *, finite: bool) -> None:
        """Halve it after a step whose gradient was not finite; double it after 2,000 that were.

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
