import asyncio

import pytest

from atoll.server.errors import StorageError
from atoll.server.telemetry.recent import Recent


class Source:
    """Counts its calls; answers when the test allows it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked = 0
        self.may = asyncio.Event()
        self.recent = Recent(self.make, 1.0, lambda: self.now)

    async def make(self) -> int:
        self.asked += 1
        asked = self.asked
        await self.may.wait()
        return asked


async def test_an_answer_is_kept_for_so_long() -> None:
    source = Source()
    source.may.set()
    assert [await source.recent() for _ in range(3)] == [1, 1, 1]
    source.now += 0.9
    assert await source.recent() == 1
    source.now += 0.1
    assert await source.recent() == 2


async def test_concurrent_requests_get_the_same_answer() -> None:
    source = Source()
    asking = [asyncio.create_task(source.recent()) for _ in range(5)]
    source.may.set()
    assert await asyncio.gather(*asking) == [1] * 5


async def test_a_cancelled_request_does_not_cancel_the_others() -> None:
    source = Source()
    first, second = (asyncio.create_task(source.recent()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    source.may.set()
    assert await second == 2


async def test_an_error_is_not_kept() -> None:
    answers = [StorageError("store.busy", "too much work", "wait"), None]

    async def make() -> int:
        if (error := answers.pop(0)) is not None:
            raise error
        return 7

    recent = Recent(make, 1.0)
    with pytest.raises(StorageError):
        await recent()
    assert await recent() == 7
