"""The path of one update on the architecture page is the path of a real one: its modules are all called."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from atoll.client import Model, Participant, Task, Update
from atoll.client.participate import Access, serve
from atoll.wire.layout import Dtype, Layout, TensorSpec
from atoll.wire.messages import layout_to_proto
from atoll.wire.v1 import control_pb2
from tests.docs.test_architecture import ROOT, walk
from tests.patience import WAIT_S
from tests.server.rpc.world import World, job

LAYOUT = Layout((TensorSpec("w", (100, 200), Dtype.FLOAT32),))
"""80 kB: an update above 32 KiB travels as chunks."""


class Recorder:
    """The files whose functions were called in any thread since ``on`` was set."""

    def __init__(self) -> None:
        self.on = False
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.on and event == "call":
            self.files.add(frame.f_code.co_filename)


class FromFit(Participant):
    """Turns the recorder on when it is asked to train."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def fit(self, model: Model, _: Task) -> Update:
        self._recorder.on = True
        return Update({name: values + np.float32(0.001) for name, values in model.items()}, weight=1)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    found, before, before_in_threads = Recorder(), sys.getprofile(), threading.getprofile()
    threading.setprofile(found)
    sys.setprofile(found)
    yield found
    sys.setprofile(before)
    threading.setprofile(before_in_threads)


async def test_an_update_passes_through_each_module_of_the_walk(tmp_path: Path, recorder: Recorder) -> None:
    async with World(tmp_path / "data") as world:
        blob = await world.upload_model(np.zeros(LAYOUT.size, np.float32), 1 << 16)
        request = control_pb2.SubmitRunRequest(
            job_toml=job(), file_name="job.toml", layout=layout_to_proto(LAYOUT), initial_blob=blob
        )
        run = (await world.operator.control.SubmitRun(request, timeout=WAIT_S)).run
        access = Access((await world.token()).encode(), tmp_path / "participant")
        participating = asyncio.create_task(serve(FromFit(recorder), access, max_rounds=1))
        await world.until(run, "finished")
        await participating
    steps = walk("The path of one update")
    assert [name for name in steps if str(ROOT / name) not in recorder.files] == []
