"""One of several servers: its name in the others' logs and pages."""

import socket

import pytest

from atoll.server.config.config import ServerConfig
from atoll.server.process.failover import name_of


@pytest.mark.parametrize("settings", [{"host": "::"}, {"host": "10.1.2.3", "peer_host": "10.1.2.3"}])
def test_its_name_is_of_its_machine_and_not_the_one_that_all_servers_advertise(settings: dict[str, str]) -> None:
    config = ServerConfig.model_validate({"advertise": "fl.example.org", "port": 7400} | settings)
    assert name_of(config) == f"{socket.gethostname()}:7400"


def test_servers_of_one_machine_have_their_ports() -> None:
    assert name_of(ServerConfig(advertise="fl.example.org", port=7500)) == "127.0.0.1:7500"
