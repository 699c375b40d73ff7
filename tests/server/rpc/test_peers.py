"""Peers as gRPC names them, and connections that are closed behind its back."""

from __future__ import annotations

import socket

import pytest

from atoll.server.rpc.peers import Address, address_of, cut, network_of
from tests.patience import WAIT_S


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
def test_what_calls_of_strangers_are_counted_by(peer: str, network: str) -> None:
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


@pytest.mark.parametrize(
    ("host", "family", "called"),
    [
        ("127.0.0.1", socket.AF_INET, "ipv4:127.0.0.1:{}"),
        ("::1", socket.AF_INET6, "ipv6:%5B::1%5D:{}"),
    ],
)
def test_one_connection_is_cut_and_no_other(host: str, family: socket.AddressFamily, called: str) -> None:
    with socket.create_server((host, 0), family=family) as listener:
        address = listener.getsockname()[:2]
        with socket.create_connection(address, WAIT_S) as one, socket.create_connection(address, WAIT_S) as other:
            (near, _), (far, _) = listener.accept(), listener.accept()
            with near, far:
                assert cut(called.format(one.getsockname()[1]))
                assert one.recv(1) == b""
                far.sendall(b"x")
                assert other.recv(1) == b"x"


def test_what_is_not_there_is_not_cut() -> None:
    assert not cut("ipv4:127.0.0.1:1")
    assert not cut("unix:/somewhere")
