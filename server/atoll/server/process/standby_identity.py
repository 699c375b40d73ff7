"""How a server that stands by is known to the server at work, and reaches its enrolment port."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import grpc

from atoll.server.config.config import ServerConfig
from atoll.server.gateway.site.passing import EnrolmentPort
from atoll.server.identity import PARTICIPANT_LIFETIME_S, Authority, new_server_id
from atoll.server.stores.turns import WorkPlace

LIFETIME_S = PARTICIPANT_LIFETIME_S
"""Life of the certificate that the server at work knows this one by."""


@dataclass(frozen=True)
class StandbyIdentity:
    """The identity of this process: servers of a federation share the authority's key, so each certifies itself.

    Attributes:
        name: of this process, new with each.
        authority: the federation's.
    """

    name: str
    authority: Authority

    @classmethod
    def open(cls, config: ServerConfig) -> StandbyIdentity:
        """A new identity. Blocks.

        Raises:
            AuthorityError: if the directory of the authority cannot be used.
        """
        return cls(new_server_id(), Authority.open(config.data / "ca", now=time.time()))

    def credentials(self) -> grpc.ChannelCredentials:
        """Mutual TLS with the server at work, with a certificate that is good for ``LIFETIME_S``."""
        made = self.authority.identify_server(self.name, now=time.time(), lifetime_s=LIFETIME_S)
        return grpc.ssl_channel_credentials(self.authority.certificate_pem, made.key_pem, made.issued.pem)


class FollowedEnrolment:
    """The enrolment port of whichever server is at work. For the event loop alone.

    Args:
        place: of the server at work.
        ca_certificate_pem: of the federation.
    """

    def __init__(self, place: WorkPlace, ca_certificate_pem: bytes) -> None:
        self._ca = ca_certificate_pem
        self._ports = [EnrolmentPort(place.enrolment, self._ca, place.name)]

    @property
    def stub(self) -> Any:
        """See ``passing.HasEnrolmentStub``."""
        return self._ports[-1].stub

    def go_to(self, place: WorkPlace) -> None:
        """Another server is at work."""
        self._ports.append(EnrolmentPort(place.enrolment, self._ca, place.name))

    async def close(self) -> None:
        """Close the connections."""
        for port in self._ports:
            await port.close()
