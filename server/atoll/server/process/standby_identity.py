"""A standby's identity towards the active server, and its connections to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from atoll.server.config.config import ServerConfig
from atoll.server.gateway.site.passing import EnrolmentPort
from atoll.server.identity import PARTICIPANT_LIFETIME_S, Authority, new_server_id
from atoll.server.stores.server_turns import WorkPlace

LIFETIME_S = PARTICIPANT_LIFETIME_S
"""Lifetime of the certificate by which the active server knows this one."""
KEPT = 2
"""Number of connections kept to one server: the newest and its predecessor."""


@dataclass(frozen=True)
class StandbyIdentity:
    """The identity of this process. Servers of a federation share the authority's key, so each certifies itself.

    Attributes:
        name: id of this process, new at each start.
        authority: the federation's authority.
    """

    name: str
    authority: Authority

    @classmethod
    def open(cls, config: ServerConfig) -> StandbyIdentity:
        """Create a new identity. Blocks.

        Raises:
            AuthorityError: if the directory of the authority cannot be used.
        """
        return cls(new_server_id(), Authority.open(config.data / "ca", now=time.time()))

    def credentials(self) -> grpc.ChannelCredentials:
        """Mutual TLS with the active server, with a certificate that is valid for ``LIFETIME_S``."""
        made = self.authority.identify_server(self.name, now=time.time(), lifetime_s=LIFETIME_S)
        return grpc.ssl_channel_credentials(self.authority.certificate_pem, made.key_pem, made.issued.pem)


class ActiveServer:
    """Connections to the active server, in addition to the link. Only the event loop uses it.

    Args:
        place: addresses of the active server.
        ca_certificate_pem: the federation's authority certificate.
        open_channel: connects to its main port.
    """

    def __init__(
        self, place: WorkPlace, ca_certificate_pem: bytes, open_channel: Callable[[], grpc.aio.Channel]
    ) -> None:
        self._turn = place.turn
        self._ca = ca_certificate_pem
        self._open_channel = open_channel
        self._ports = [EnrolmentPort(place.enrolment, self._ca, place.name)]
        self._channels = [open_channel()]
        self._ending: set[asyncio.Future[None]] = set()

    @property
    def stub(self) -> Any:
        """See ``passing.HasEnrolmentStub``."""
        return self._ports[-1].stub

    def channel(self) -> grpc.aio.Channel:
        """Channel to its main port, for forwarded calls."""
        return self._channels[-1]

    def go_to(self, place: WorkPlace) -> None:
        """Reconnect, to another server or with a new certificate.

        Open calls to a server whose turn is over end at once; others continue until the next reconnection.
        """
        self._ports.append(EnrolmentPort(place.enrolment, self._ca, place.name))
        self._channels.append(self._open_channel())
        kept = KEPT if place.turn == self._turn else 1
        self._turn = place.turn
        while len(self._channels) > kept:
            self._end(self._ports.pop(0))
            self._end(self._channels.pop(0))

    def _end(self, connection: EnrolmentPort | grpc.aio.Channel) -> None:
        ending = asyncio.ensure_future(connection.close())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Close the connections."""
        for port in self._ports:
            self._end(port)
        for channel in self._channels:
            self._end(channel)
        await asyncio.gather(*self._ending)
