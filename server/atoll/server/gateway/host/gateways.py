"""Identifies the calling gateway: an aggregator or a standby."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.server.identity import Role
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.gateway_nodes import GATEWAY, STANDBY


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that has proved its certificate.

    Attributes:
        id: its id in the certificate.
        is_server: whether it is a standby of the federation, which has the authority's key, may act for every
            participant, and keeps uploads where every server finds them.
    """

    id: str
    is_server: bool = False

    @classmethod
    def of(cls, caller: Caller) -> Gateway:
        """The calling gateway."""
        return cls(caller.name, caller.role is Role.SERVER)

    @property
    def node(self) -> str:
        """The name of its ingest node."""
        return (STANDBY if self.is_server else GATEWAY) + self.id

    @property
    def through(self) -> str:
        """The aggregator's name in its participants' sessions; empty for a standby."""
        return "" if self.is_server else self.id

    def __str__(self) -> str:
        """The gateway's name in messages."""
        return f"{'standby' if self.is_server else 'aggregator'} {self.id}"
