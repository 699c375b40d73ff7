"""Peers as gRPC names them."""

from __future__ import annotations

import pytest

from atoll.server.rpc.peers import Address, address_of, network_of


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        ("ipv4:10.0.0.1:50000", "10.0.0.1"),
        ("ipv6:%5B::1%5D:4000", "::/64"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:4000", "2001:db8:1:2::/64"),
        ("ipv6:[::ffff:10.0.0.1]:4000", "10.0.0.1"),
        ("ipv6:[fe80::1%eth0]:4000", "fe80::/64"),
        ("unix:/somewhere", "unix"),
        ("", ""),
        ("ipv4:nonsense", "ipv4"),
    ],
)
def test_unauthenticated_calls_are_counted_by_network(peer: str, network: str) -> None:
    assert network_of(peer) == network


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.1:50000", ("10.0.0.1", 50000)),
        ("ipv6:%5B::1%5D:4000", ("::1", 4000)),
        ("ipv6:[::ffff:10.0.0.1]:4000", ("10.0.0.1", 4000)),
        ("ipv6:[fe80::1%eth0]:4000", ("fe80::1", 4000)),
        ("unix:/somewhere", None),
        ("ipv4:10.0.0.1", None),
        ("", None),
    ],
)
def test_where_a_peer_is(peer: str, address: Address | None) -> None:
    assert address_of(peer) == address
