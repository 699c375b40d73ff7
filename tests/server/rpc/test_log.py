"""The server's newest log lines, as operators get them over a real socket."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from atoll.wire.v1 import control_pb2
from tests.patience import WAIT_S
from tests.server.rpc.world import World

log = logging.getLogger("atoll.server.tests")


async def lines(world: World, **asked: object) -> tuple[list[str], str]:
    request = control_pb2.ListLogLinesRequest(**asked)  # type: ignore[arg-type]
    found = await world.operator.control.ListLogLines(request, timeout=WAIT_S)
    return [one.message for one in found.lines], found.next


async def test_operators_read_the_newest_lines_page_by_page(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "atoll")
    log.info("a notice")
    log.warning("%s is damaged", Path("/srv/secret/spool"))
    log.error("an error")
    first, following = await lines(world, limit=2)
    assert first == ["an error", "spool is damaged"]
    assert (await lines(world, limit=1, after=following))[0] == ["a notice"]
    assert (await lines(world, level=control_pb2.LOG_LEVEL_ERROR))[0] == ["an error"]
    assert (await lines(world, limit=1, after="no number"))[0] == ["an error"]


async def test_commands_of_operators_are_among_them(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "atoll")
    await world.operator.control.PruneStorage(control_pb2.PruneStorageRequest(), timeout=WAIT_S)
    assert any(text.startswith("storage pruned by operator") for text in (await lines(world))[0])
