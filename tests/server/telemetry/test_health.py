import asyncio
import dataclasses
import json
from http import HTTPStatus

import pytest

from atoll.server.errors import StorageError
from atoll.server.telemetry import health
from atoll.server.telemetry.health import Checks, Readiness, page_of


async def written() -> None:
    return


async def problems_of(checks: Checks) -> dict[str, str]:
    return await Readiness(checks).problems()


async def no_problem() -> str:
    return ""


GOOD = Checks(lambda: True, written, lambda: "", lambda: (2, 2), no_problem)


async def test_a_server_without_problems_is_ready() -> None:
    assert await problems_of(GOOD) == {}
    assert page_of({}).status is HTTPStatus.OK


async def test_each_problem_is_named() -> None:
    async def refused() -> None:
        raise StorageError("store.unavailable", "/secret/path: read-only")

    bad = dataclasses.replace(GOOD, write=refused, shortage=lambda: "17 MiB free", workers=lambda: (1, 2))
    found = await problems_of(bad)
    assert set(found) == {"workers", "disk", "database"}
    assert found["disk"] == "17 MiB free"
    assert found["database"] == "cannot be written: store.unavailable"
    page = page_of(found)
    assert page.status is HTTPStatus.SERVICE_UNAVAILABLE
    assert json.loads(page.body) == {"ready": False, "problems": found}


async def test_a_database_that_does_not_answer_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "DATABASE_S", 0.01)
    found = await problems_of(dataclasses.replace(GOOD, write=asyncio.Event().wait))  # type: ignore[arg-type]
    assert set(found) == {"database"}


async def test_a_store_of_models_that_refuses_or_does_not_answer_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused() -> str:
        return "bucket.refused: there is no such bucket"

    assert await problems_of(dataclasses.replace(GOOD, blobs=refused)) == {"blobs": await refused()}
    monkeypatch.setattr(health, "BLOBS_S", 0.01)
    found = await problems_of(dataclasses.replace(GOOD, blobs=asyncio.Event().wait))  # type: ignore[arg-type]
    assert found == {"blobs": "the store of models did not answer within 0.01 s"}


async def test_a_server_that_does_not_serve_is_asked_no_further() -> None:
    async def never() -> None:
        raise AssertionError

    stopping = dataclasses.replace(GOOD, serving=lambda: False, write=never)
    assert set(await problems_of(stopping)) == {"serving"}


async def test_a_poller_makes_one_write_in_a_second_and_hears_of_the_stop_at_once() -> None:
    now, writes, serving = [100.0], [0], [True]

    async def write() -> None:
        writes[0] += 1

    readiness = Readiness(dataclasses.replace(GOOD, serving=lambda: serving[0], write=write), lambda: now[0])
    for _ in range(50):
        assert await readiness.problems() == {}
    assert writes[0] == 1
    now[0] += health.FRESH_S
    await readiness.problems()
    assert writes[0] == 2
    serving[0] = False
    assert set(await readiness.problems()) == {"serving"}
