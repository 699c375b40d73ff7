from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from atoll.server.cli.participants import participants
from atoll.wire.v1 import control_pb2
from tests.server.cli.conftest import asked_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result


def test_list_shows_state_and_labels(invoke: Callable[..., Result]) -> None:
    lines = invoke(participants, "list").stdout.splitlines()
    assert any("pa" in line and "connected" in line and "site=north" in line for line in lines)
    assert any("pb" in line and "revoked" in line for line in lines)


def test_list_can_be_of_those_connected(invoke: Callable[..., Result]) -> None:
    found = json.loads(invoke(participants, "list", "--connected", "--json").stdout)
    assert [item["participant"] for item in found] == ["pa"]


def test_list_asks_for_page_after_page(fake: Any, invoke: Callable[..., Result]) -> None:
    found = json.loads(invoke(participants, "list", "--organisation", "lab", "--json").stdout)
    assert [item["participant"] for item in found] == ["pa", "pb"]
    assert [(asked.after, asked.organisation) for asked in fake.control.asked] == [("", "lab"), ("pa", "lab")]


def test_revoke_tells_the_server(fake: Any, invoke: Callable[..., Result]) -> None:
    result = invoke(participants, "revoke", "pa", "--reason", "lost laptop")
    assert result.exit_code == 0
    assert "pa (lab) is revoked" in result.stdout
    assert asked_for(fake, control_pb2.RevokeParticipantRequest)[0].reason == "lost laptop"
