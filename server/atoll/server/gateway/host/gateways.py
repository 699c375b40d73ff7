"""Which gateway calls: an aggregator, or a server that stands by."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.server.identity import Role
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node_pool import GATEWAY, STANDBY


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that has proved its certificate.

    Attributes:
        id: from the certificate.
        is_server: it is a server of the federation that stands by: it has the authority's key, may speak for every
            participant, and keeps uploads where every server finds them.
    """

    id: str
    is_server: bool = False

    @classmethod
    def of(cls, caller: Caller) -> Gateway:
        """The gateway that calls."""
        return cls(caller.name, caller.role is Role.SERVER)

    @property
    def node(self) -> str:
        """The name of its ingest node."""
        return (STANDBY if self.is_server else GATEWAY) + self.id

    @property
    def through(self) -> str:
        """The name of the aggregator in its participants' sessions; empty for a server, which is none."""
        return "" if self.is_server else self.id

    def __str__(self) -> str:
        """As messages name it."""
        return f"{'standby' if self.is_server else 'aggregator'} {self.id}"
