import ipaddress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from pydantic import ValidationError

from atoll.client.limits import Limits
from atoll.server.config.config import ServerConfig
from atoll.server.identity.certificates import server_names

DATA = Path("data")


def config(**settings: Any) -> ServerConfig:
    chosen: dict[str, Any] = {"data": DATA} | settings
    return ServerConfig(**chosen)


def test_defaults_are_safe() -> None:
    found = config()
    assert (found.host, found.port, found.insecure, found.workers) == ("127.0.0.1", 7400, False, 1)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"port": 65_536}, "port"),
        ({"port": -1}, "port"),
        ({"enrol_port": 70_000}, "enrol_port"),
        ({"transfer_port": -1}, "transfer_port"),
        ({"workers": 0}, "workers"),
        ({"workers": 65}, "workers"),
        ({"certificate_lifetime_s": 1.0}, "certificate_lifetime_s"),
        ({"certificate_lifetime_s": float("inf")}, "certificate_lifetime_s"),
        ({"silence_s": -1.0}, "silence_s"),
        ({"ping_s": 9.9}, "ping_s"),
        ({"ping_s": 240.1}, "ping_s"),
        ({"ping_s": float("nan")}, "ping_s"),
        ({"drain_s": float("nan")}, "drain_s"),
        ({"keep_models": 0}, "keep_models"),
        ({"host": ""}, "host"),
        ({"advertise": ""}, "advertise"),
        ({"advertise": "fl.example.org:7400"}, "advertise"),
        ({"advertise": "https://fl.example.org"}, "advertise"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_a_bad_value_is_named(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        config(**settings)
    (problem,) = caught.value.errors()
    assert problem["loc"] == (key,)


def test_silence_is_longer_than_a_client_may_take_to_come_back() -> None:
    longest_s = Limits().backoff_cap_s
    assert config().silence_s > longest_s
    assert config().doubts == ()
    (doubt,) = config(silence_s=longest_s).doubts
    assert "set it above 5" in doubt


def test_a_server_that_advertises_a_name_and_listens_on_loopback_is_doubted() -> None:
    (doubt,) = config(advertise="fl.example.org").doubts
    assert "fl.example.org" in doubt
    assert "set host to 0.0.0.0" in doubt
    for reached in ({"host": "0.0.0.0", "advertise": "fl.example.org"}, {"advertise": "localhost"}):  # noqa: S104
        assert config(**reached).doubts == ()


def test_all_bad_values_are_named_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        config(port=-1, workers=0, drain_s=-5.0)
    assert {problem["loc"][0] for problem in caught.value.errors()} == {"port", "workers", "drain_s"}


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "example.org", "::"])  # noqa: S104 - refused, not bound
def test_plaintext_is_for_loopback(host: str) -> None:
    with pytest.raises(ValidationError, match="plaintext is for loopback only") as caught:
        config(insecure=True, host=host)
    assert repr(host) in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_plaintext_on_loopback(host: str) -> None:
    assert config(insecure=True, host=host).insecure


def test_it_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        config().port = 1


@pytest.mark.parametrize(
    ("settings", "advertised"),
    [
        ({}, "127.0.0.1"),
        ({"host": "10.1.2.3"}, "10.1.2.3"),
        ({"host": "0.0.0.0"}, "127.0.0.1"),  # noqa: S104 - an example
        ({"host": "0.0.0.0", "advertise": "fl.example.org"}, "fl.example.org"),  # noqa: S104 - an example
    ],
)
def test_the_name_that_participants_connect_to(settings: dict[str, Any], advertised: str) -> None:
    found = config(**settings)
    assert found.advertised_host == advertised
    assert advertised in found.certificate_names
    assert not {"0.0.0.0", "::"} & set(found.certificate_names)  # noqa: S104 - compared


def test_the_certificate_of_a_server_on_a_link_local_address_has_it_without_its_zone() -> None:
    found = config(host="fe80::1%eth0")
    assert found.advertised_host == "fe80::1%eth0"
    addresses = server_names(found.certificate_names).get_values_for_type(x509.IPAddress)
    assert ipaddress.ip_address("fe80::1") in addresses


def test_secondary_ports_follow_the_main_one() -> None:
    assert config(port=7400).port_after(7400, 1, None) == 7401
    assert config(port=0).port_after(51234, 1, None) == 0
    assert config(port=7400).port_after(7400, 2, 9000) == 9000
