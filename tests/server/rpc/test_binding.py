"""Bindings of join tokens to aggregators and host names."""

import pytest

from atoll.server.errors import InvalidRequestError
from atoll.server.identity import ParticipantKind
from atoll.server.rpc.binding import Binding, bound_through, hosts_of

SERVER = ("fl.example.org", "localhost", "127.0.0.1", "2001:db8::1")


def hosts(*names: str, kind: ParticipantKind = ParticipantKind.AGGREGATOR, through: str = "") -> str:
    return hosts_of(names, kind, through=through, server_names=SERVER)


def test_an_aggregator_gets_the_names_that_its_token_has() -> None:
    assert hosts("agg.example.org", "10.1.2.3", "agg.example.org") == "agg.example.org 10.1.2.3"
    assert hosts("127.0.0.1") == "127.0.0.1"
    assert hosts("Localhost") == "Localhost"
    assert hosts(kind=ParticipantKind.EDGE) == ""


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "0 host names for an aggregator: 1 to 16"),
        (("fl.example.org",), "fl.example.org is the server's own name"),
        (("agg.example.org", "FL.Example.org"), "FL.Example.org is the server's own name"),
        (("2001:0DB8:0::1",), "2001:0DB8:0::1 is the server's own name"),
        (("agg.example.org:7410",), "neither a host name nor an IP address"),
        (("a b",), "neither a host name nor an IP address"),
    ],
)
def test_names_that_an_aggregator_may_not_have(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        hosts(*names)


def test_names_and_bindings_are_for_their_kinds() -> None:
    with pytest.raises(InvalidRequestError, match="host names for a token of kind silo"):
        hosts("agg.example.org", kind=ParticipantKind.SILO)
    with pytest.raises(InvalidRequestError, match="an aggregator through another"):
        hosts("agg.example.org", through="north")


def test_a_binding_leads_to_the_aggregators_enrolment_port() -> None:
    assert bound_through("north", ["pa"], {"pa": "agg:7411"}) == Binding("agg:7411", "", "pa")
    with pytest.raises(InvalidRequestError, match="0 aggregators are named 'north'") as none:
        bound_through("north", [], {})
    assert "start it first" in none.value.detail.remedy
    with pytest.raises(InvalidRequestError, match="2 aggregators are named 'north': pa, pb") as several:
        bound_through("north", ["pa", "pb"], {"pa": "agg:7411"})
    assert "--through pa" in several.value.detail.remedy
    with pytest.raises(InvalidRequestError, match="aggregator pa is not connected"):
        bound_through("north", ["pa"], {})
