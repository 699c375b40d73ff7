"""One round, as a rank knows it while it is done."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.client.transfer import TransferLink
    from atoll.datacenter.federation.desk import Handed
    from atoll.datacenter.federation.difference import Difference
    from atoll.datacenter.federation.orders import Order


@dataclass(frozen=True)
class Trained:
    """What the inner steps came to.

    Attributes:
        steps: of the round, those before a restart too.
        tokens: counted in them.
        metrics: means over the steps of this process.
        seconds: that they took.
    """

    steps: int
    tokens: int
    metrics: dict[str, float]
    seconds: float


@dataclass
class Round:
    """A round on this rank.

    Attributes:
        order: what it is.
        link: for transfers.
        handed: what rank 0's session waits for.
        fetched_s: how long fetching took; None: not fetched yet.
        fetched_bytes: of all ranks; known to rank 0 alone.
        trained: once the inner steps are made.
        difference: what is to be sent, then.
        until_ended: left when it is over.
    """

    order: Order
    link: TransferLink
    handed: Handed | None
    fetched_s: float | None = None
    fetched_bytes: int = 0
    trained: Trained | None = None
    difference: Difference | None = None
    until_ended: ExitStack = field(default_factory=ExitStack)
