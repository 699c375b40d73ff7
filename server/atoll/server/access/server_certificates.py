"""Issues server certificates to aggregators, only for the host names in their join tokens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from atoll.server.errors import ForbiddenError
from atoll.server.identity import Authority, CertificateRequest
from atoll.server.stores import Reader, participants

log = logging.getLogger(__name__)


class ServerCertificates:
    """Issues server certificates. They are not recorded, since they do not identify callers.

    Args:
        authority: signs the certificates.
        reader: the database's readers.
        clock: epoch seconds, UTC.
    """

    def __init__(self, authority: Authority, reader: Reader, clock: Callable[[], float]) -> None:
        self._authority = authority
        self._reader = reader
        self._clock = clock

    async def certify(self, aggregator: str, csr_pem: bytes) -> tuple[bytes, tuple[str, ...]]:
        """Issue a certificate (PEM) to the aggregator with this id; also returns the names in it.

        Raises:
            CertificateRequestError: if the request is not acceptable.
            ForbiddenError: if the aggregator was enrolled without host names.
        """
        request = await asyncio.to_thread(CertificateRequest.parse, csr_pem)
        row = await self._reader.run(lambda connection: participants.get(connection, aggregator))
        names = () if row is None else tuple(row.hosts.split())
        if not names:
            raise ForbiddenError(
                "gateway.names",
                f"{aggregator} was enrolled without host names",
                "enrol with a token of kind aggregator",
            )
        pem = await asyncio.to_thread(self._authority.issue_server, request, names, now=self._clock())
        log.info("server certificate made for aggregator %s: %s", aggregator, ", ".join(names))
        return pem, names
