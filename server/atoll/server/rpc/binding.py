"""Bindings of join tokens: the host names of an aggregator, or an aggregator to connect through."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from atoll.server.errors import InvalidRequestError
from atoll.server.identity import AuthorityError, ParticipantKind
from atoll.server.identity.certificates import server_names as as_alternative_names
from atoll.server.identity.host_name import compared
from atoll.wire.loopback import is_loopback

MAX_HOSTS = 16
_CODE = "token.binding"


@dataclass(frozen=True, slots=True)
class Binding:
    """The address where the holder of a token enrols (host:port), and the token's ``hosts`` and ``through``."""

    address: str
    hosts: str
    through: str


def hosts_of(names: Sequence[str], kind: ParticipantKind, *, through: str, server_names: Collection[str]) -> str:
    """The host names of an aggregator's certificate, as ``TokenRecord.hosts``; empty for other kinds.

    Args:
        names: host names and IP addresses that its participants connect to.
        kind: the token's kind.
        through: the token's aggregator; must be empty here.
        server_names: host names of the server and of those that stand by; with a certificate for one of them, an
            aggregator could impersonate a server.

    Raises:
        InvalidRequestError: if the names do not fit the kind or are invalid.
    """
    if kind is not ParticipantKind.AGGREGATOR:
        if names:
            raise InvalidRequestError(
                _CODE, f"host names for a token of kind {kind}", "give them to a token of kind aggregator"
            )
        return ""
    if through:
        raise InvalidRequestError(
            _CODE, "an aggregator through another aggregator", "connect every aggregator to the server itself"
        )
    if not 1 <= len(names) <= MAX_HOSTS:
        raise InvalidRequestError(
            _CODE,
            f"{len(names)} host names for an aggregator: 1 to {MAX_HOSTS}",
            "name the hosts that its participants connect to (--serves)",
        )
    _check_names(names)
    own = {compared(name) for name in server_names}
    for name in names:
        if (known := compared(name)) in own and not is_loopback(known):
            raise InvalidRequestError(
                _CODE, f"{name} is a name of the server's own", "give the aggregator a host name of its own"
            )
    return " ".join(dict.fromkeys(names))


def bound_through(name: str, found: Sequence[str], addresses: Mapping[str, str]) -> Binding:
    """The binding of a participant to an aggregator.

    Args:
        name: id or organisation, from the operator.
        found: ids of the aggregators with that name.
        addresses: enrolment address of each aggregator that is connected, by id.

    Raises:
        InvalidRequestError: unless the name matches exactly one aggregator, and that one is connected.
    """
    if len(found) != 1:
        among = f": {', '.join(found)}" if found else ""
        remedy = (
            f"name one by its id, as in `--through {found[0]}`, and revoke those that are not in use: "
            "`atoll participants list` says which are connected"
            if found
            else "start it first, with a token made by `atoll token new --kind aggregator`; `atoll participants list` "
            "shows those that are enrolled"
        )
        raise InvalidRequestError(
            _CODE,
            f"{len(found)} aggregators are named {name[:80]!r}{among}",
            remedy,
        )
    address = addresses.get(found[0], "")
    if not address:
        raise InvalidRequestError(
            _CODE,
            f"aggregator {found[0]} is not connected, so its address is not known",
            "start it: `atoll aggregator start`",
        )
    return Binding(address, "", found[0])


def _check_names(names: Sequence[str]) -> None:
    try:
        as_alternative_names(names)
    except AuthorityError as error:
        raise InvalidRequestError(_CODE, str(error), "give host names or IP addresses, without a port") from None
