"""Fixtures for the client's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.client import Participant
from tests.client.harness import MODEL, Federation, Run, running

Start = Callable[..., Run]


@pytest.fixture
async def server() -> AsyncIterator[Federation]:
    async with Federation(MODEL) as federation:
        yield federation


@pytest.fixture
async def start(server: Federation, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts participants at the server; all are stopped at the end."""
    runs: list[Run] = []

    def begin(participant: Participant, **options: Any) -> Run:
        runs.append(running(server, participant, tmp_path / "state", **options))
        return runs[-1]

    yield begin
    for run in runs:
        await run.stop()
