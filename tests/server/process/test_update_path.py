"""The paths of an update on the architecture page are those of real ones: their modules are all called."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Iterator
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
from tests.server.privacy.jobs import NOISE, job_text
from tests.server.rpc.world import World, job

LAYOUT = Layout((TensorSpec("w", (100, 200), Dtype.FLOAT32),))
"""80 kB: an update above 32 KiB travels as chunks."""
SECRET = job_text(
    'size = 1\nsampler = "poisson"\nrate = 0.999',
    rest='[aggregation]\nweighting = "uniform"\n[straggler]\nreport_window_s = 1.0',
    rounds=1,
)
"""Its round lasts as long as its window, and is released even without an update."""
PUBLIC = job_text(
    'size = 1\nsampler = "least_recent"',
    f'{NOISE}\nclip = 1.0\nmechanism = "tree"\nmax_participations = 1\nmin_separation = 1',
    rounds=1,
)


class Recorder:
    """The files whose functions were called in any thread since ``on`` was set."""

    def __init__(self) -> None:
        self.on = False
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.on and event == "call":
            self.files.add(frame.f_code.co_filename)


class Trains(Participant):
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


async def submit(world: World, job_toml: bytes) -> str:
    request = control_pb2.SubmitRunRequest(
        job_toml=job_toml,
        file_name="job.toml",
        layout=layout_to_proto(LAYOUT),
        initial_blob=await world.upload_model(np.zeros(LAYOUT.size, np.float32), 1 << 16),
    )
    return (await world.operator.control.SubmitRun(request, timeout=WAIT_S)).run


@contextlib.asynccontextmanager
async def participating(world: World, participant: Participant, state: Path) -> AsyncIterator[None]:
    task = asyncio.create_task(serve(participant, Access((await world.token()).encode(), state)))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def not_called(heading: str, recorder: Recorder) -> list[str]:
    return [name for name in walk(heading) if str(ROOT / name) not in recorder.files]


async def test_an_update_passes_through_each_module_of_the_walk(tmp_path: Path, recorder: Recorder) -> None:
    async with World(tmp_path / "data") as world:
        run = await submit(world, job())
        async with participating(world, Trains(recorder), tmp_path / "participant"):
            await world.until(run, "finished")
    assert not_called("The path of one update", recorder) == []


async def test_private_rounds_pass_through_each_module_of_the_walk(tmp_path: Path, recorder: Recorder) -> None:
    """A public draw with a bound on participation, which waits for its member, and a secret one."""
    recorder.on = True
    async with World(tmp_path / "data") as world:
        runs = [await submit(world, one.encode()) for one in (PUBLIC, SECRET)]
        async with participating(world, Trains(recorder), tmp_path / "participant"):
            for run in runs:
                await world.until(run, "finished")
    assert not_called("The path of one private round", recorder) == []
