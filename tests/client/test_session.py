from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from atoll.client import Access, Limits, Model, Participant, Task, Update, serve
from tests.client.harness import Federation

MODEL = {"weight": np.arange(600, dtype=np.float32).reshape(20, 30), "bias": np.zeros(30, np.float32)}


class AddOne(Participant):
    examples = 7

    def fit(self, model: Model, task: Task) -> Update:
        return Update(
            weights={name: view + np.float32(1) for name, view in model.items()}, weight=7, partial=task.should_stop
        )


def access(server: Federation, tmp_path: Path) -> Access:
    return Access(state=tmp_path / "state", server=server.address, insecure=True, name="p1")


async def test_one_round(tmp_path: Path) -> None:
    async with Federation(MODEL) as server:
        session = asyncio.create_task(serve(AddOne(), access(server, tmp_path), max_rounds=1, limits=Limits()))
        hello = await server.hello()
        assert hello.examples == 7
        server.invite()
        assert (await server.reply()).verdict == 1
        report = await server.report()
        assert report.weight == 7
        np.testing.assert_array_equal(server.update_of(report), 1.0)
        assert (await session).reported == 1
