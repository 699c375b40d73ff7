"""Creates and voids join tokens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from atoll.server.access.certificates import check_operator_stands
from atoll.server.access.quotas import check_participants
from atoll.server.errors import InvalidRequestError
from atoll.server.identity import UNBOUND, Authority, Bound, ParticipantKind, mint
from atoll.server.identity.host_name import compared
from atoll.server.stores import Writer, participants, tokens
from atoll.wire.join_token import JoinToken
from atoll.wire.loopback import is_loopback

log = logging.getLogger(__name__)


class JoinTokens:
    """The join tokens of a server.

    Args:
        authority: its certificate is part of each token.
        writer: the database's writer.
        clock: epoch seconds, UTC.
    """

    def __init__(self, authority: Authority, writer: Writer, clock: Callable[[], float]) -> None:
        self._authority = authority
        self._writer = writer
        self._clock = clock

    async def create(
        self,
        organisation: str,
        kind: ParticipantKind,
        *,
        lifetime_s: float,
        count: int,
        operator: str,
        address: str,
        bound: Bound = UNBOUND,
        shows_counts: bool = True,
    ) -> list[JoinToken]:
        """Mint one-time join tokens, of which only hashes are kept. ``address`` is where their holders enrol.

        ``shows_counts``: whether a refusal by the project's quota may name the project's counts.

        Raises:
            InvalidRequestError: for an invalid organisation or lifetime, or a host name of another aggregator.
            ConflictError: if the project is closed.
            LimitExceededError: if the project would exceed its quota of participants.
            RevokedError: if the operator has just been revoked.
        """
        now = self._clock()
        minted = [
            mint(
                organisation,
                kind,
                created_by=operator,
                now=now,
                lifetime_s=lifetime_s,
                bound=bound,
            )
            for _ in range(count)
        ]
        more = 0 if kind is ParticipantKind.AGGREGATOR else count

        def work(connection: Connection) -> None:
            check_operator_stands(connection, operator, now)
            if bound.hosts:
                _check_names(connection, organisation, bound, now=now)
            check_participants(connection, bound.project, more, now=now, promised=True, shows_counts=shows_counts)
            for token in minted:
                tokens.add(connection, token.record)

        await self._writer.run(work)
        words = "%d join tokens made: project %s, organisation %s, kind %s, operator %s"
        log.info(words, count, bound.project, organisation, kind, operator)
        ca = self._authority.certificate_pem

        def pack() -> list[JoinToken]:
            return [JoinToken(address, ca, token.record.id, token.secret) for token in minted]

        return await asyncio.to_thread(pack)

    async def void(
        self, ids: Sequence[str], created_by: str, *, project: str | None = None, organisation: str = ""
    ) -> int:
        """Void unused join tokens: these, or all made by an operator; returns how many were still usable.

        Args:
            ids: ids of tokens.
            created_by: the operator who made them, if there are no ids.
            project: the tokens' project; None for any.
            organisation: the tokens' organisation; empty for any.

        Raises:
            RecordMissingError: if a token does not exist; then none is voided.
        """
        now = self._clock()

        def work(connection: Connection) -> int:
            if ids:
                return tokens.void_named(connection, ids, at=now, project=project, organisation=organisation)
            return tokens.void(connection, created_by=created_by, at=now, project=project, organisation=organisation)

        return await self._writer.run(work)


def _check_names(connection: Connection, organisation: str, bound: Bound, *, now: float) -> None:
    """Refuse host names of an enrolled aggregator or of an unspent token for one, whom the new one could impersonate.

    Host names of the same organisation's aggregators in the same project are allowed, for an aggregator that replaces
    another or shares its machine.

    Args:
        connection: to the database.
        organisation: of the new aggregator.
        bound: its names, and its project.
        now: epoch seconds, UTC.

    Raises:
        InvalidRequestError: if one of the names is taken.
    """
    wanted = {compared(name): name for name in bound.hosts.split()}
    for hosts, theirs, project in (*participants.named_aggregators(connection), *tokens.named_open(connection, now)):
        if (theirs, project) == (organisation, bound.project):
            continue
        for name in map(compared, hosts.split()):
            if name in wanted and not is_loopback(name):
                raise InvalidRequestError(
                    "token.binding",
                    f"{wanted[name]} is a name of another aggregator",
                    "give it a host name of its own, or have the other one revoked or its join token voided",
                )
