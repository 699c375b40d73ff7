"""The mean of a step, and which replica groups took part in some steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from atoll.datacenter.elastic.replicas.messages import Decision, Quorum


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean gradient of a step, and the groups in it.

    Attributes:
        quorum: the groups in the step, counted tokens and loss.
        decision: what follows the step.
        sums: one tensor for each buffer of the gradients.
    """

    quorum: Quorum
    decision: Decision
    sums: Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Attendance:
    """Attendance of replica groups over some steps.

    Attributes:
        last: groups whose gradients are in the last step's mean.
        share: gradients of groups in these steps / (steps * groups).
        lost: groups lost since the launcher began.
        healed: groups that came back since then.
        speculated: gradients in these steps that another group has computed for a late one.
    """

    last: tuple[int, ...]
    share: float
    lost: int
    healed: int
    speculated: int


def attendance_of(means: Sequence[Mean], groups: int) -> Attendance:
    """Return the attendance over the steps of these means, at least one, among this many groups."""
    last = means[-1]
    together = sum(len(mean.quorum.contributors) for mean in means)
    share = together / (len(means) * groups)
    speculated = sum(len(mean.quorum.held) for mean in means)
    return Attendance(last.quorum.contributors, share, last.decision.lost, last.decision.healed, speculated)
