"""The operator's credential in the data directory: created at the first start, renewed while the server runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection

from atoll.server.errors import ServerError
from atoll.server.identity import Authority, CredentialError, OperatorCredential, OperatorRole, Peer, PeerError
from atoll.server.stores import Grant, Reader, Writer, certificates, operators

log = logging.getLogger(__name__)

OPERATOR_NAME = "admin"
RENEW_S = 30 * 86_400.0
"""The credential is renewed when less than this remains of its lifetime."""
CHECK_S = 3600.0


class OperatorFile:
    """One server's ``operator.json``. A replaced certificate stays valid until it expires, as do copies.

    Args:
        path: path of the file.
        address: the server's main port, host:port.
        authority: issues the certificate.
        writer: the database's writer; the server accepts only certificates that the database knows.
        reader: the database's readers.
        clock: epoch seconds, UTC.
    """

    def __init__(
        self,
        path: Path,
        address: str,
        authority: Authority,
        writer: Writer,
        reader: Reader,
        clock: Callable[[], float],
    ) -> None:
        self.path = path
        self._address = address
        self._authority = authority
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Create or renew the file, and keep it valid from now on.

        Raises:
            ServerError: if it can neither be used nor replaced.
        """
        await self.ensure()
        self._task = asyncio.create_task(self._keep(), name="operator-file")

    async def stop(self) -> None:
        """Stop renewing it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                await self.ensure()
            except ServerError as error:
                log.warning("the operator's credential could not be renewed, it is tried again later: %s", error)

    async def ensure(self) -> None:
        """Replace the file if it is invalid or expires soon.

        Raises:
            ServerError: if it can neither be used nor replaced.
        """
        async with self._turn:
            if not await self._is_good():
                await self._replace()

    async def _replace(self) -> None:
        now = self._clock()
        identity = self._authority.issue_operator(OPERATOR_NAME, now=now)

        def work(connection: Connection) -> None:
            certificates.add(connection, identity.issued.peer, issued_at=now)
            operators.put(connection, Grant(OPERATOR_NAME, OperatorRole.ADMINISTRATOR, "server", now))

        await self._writer.run(work)
        OperatorCredential(
            name=OPERATOR_NAME,
            address=self._address,
            ca_certificate=self._authority.certificate_pem.decode(),
            certificate=identity.issued.pem.decode(),
            key=identity.key_pem.decode(),
        ).write(self.path)
        log.info("operator credential written: %s", self.path)

    async def _is_good(self) -> bool:
        """Whether the file fits this address, authority and database, and need not be renewed yet."""
        try:
            kept = OperatorCredential.read(self.path)
            peer = Peer.from_pem(kept.certificate.encode())
        except (CredentialError, PeerError):
            return False
        known = await self._reader.run(lambda connection: certificates.get(connection, peer.fingerprint))
        same = kept.address == self._address and kept.ca_certificate == self._authority.certificate_pem.decode()
        in_force = known is not None and known.revoked_at is None
        lasts = peer.not_after - self._clock() > RENEW_S or peer.not_after >= self._authority.not_after
        return same and in_force and lasts
