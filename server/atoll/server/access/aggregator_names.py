"""The host names of aggregators: none may have one of another organisation's aggregator, for which it could pass."""

from __future__ import annotations

from sqlalchemy import Connection

from atoll.server.errors import InvalidRequestError
from atoll.server.identity import Bound
from atoll.server.identity.host_name import compared
from atoll.server.stores import participants, tokens
from atoll.wire.loopback import is_loopback


def check_names(connection: Connection, organisation: str, bound: Bound, *, now: float) -> None:
    """Refuse names of an aggregator that is enrolled, or may be with an unspent token.

    Names of the same organisation's aggregators in the same project may be given again: for one that takes the place of
    another, or shares its machine.

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
