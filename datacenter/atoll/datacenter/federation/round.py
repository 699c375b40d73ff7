"""State of one round on a rank while it is carried out."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.client.silo import TaskTransfers
    from atoll.datacenter.federation.difference import Difference
    from atoll.datacenter.federation.orders import Order
    from atoll.datacenter.federation.session_thread import Handover


@dataclass(frozen=True)
class Trained:
    """Result of the inner steps.

    Attributes:
        steps: steps of the round, including those before a restart.
        tokens: tokens counted in them.
        metrics: means over the steps of this process.
        seconds: duration of these steps.
    """

    steps: int
    tokens: int
    metrics: dict[str, float]
    seconds: float


@dataclass
class Round:
    """A round on this rank.

    Attributes:
        order: order of the round.
        link: transfers of the round.
        handover: passes results to rank 0's session; None on other ranks.
        fetched_s: seconds of fetching; None: not fetched yet.
        fetched_bytes: bytes fetched by all ranks; only known to rank 0.
        trained: result of the inner steps, once they are done.
        difference: what to send, from then on.
        until_ended: closed when the round has ended.
    """

    order: Order
    link: TaskTransfers
    handover: Handover | None
    fetched_s: float | None = None
    fetched_bytes: int = 0
    trained: Trained | None = None
    difference: Difference | None = None
    until_ended: ExitStack = field(default_factory=ExitStack)
