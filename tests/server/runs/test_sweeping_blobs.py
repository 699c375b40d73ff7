"""Blobs are deleted from a bucket only after another database query, which fails for a server that lost its turn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from atoll.server.buckets import parse_place
from atoll.server.errors import ServerError
from atoll.server.runs.services import Services
from atoll.server.stores import Store, models, runs
from atoll.server.stores.blob_place import BlobSettings
from tests.server.stores.samples import NOW, RUN, run
from tests.server.stores.test_blob_stores import put


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    settings = BlobSettings(parse_place(f"file://{tmp_path}/bucket"))
    store = Store.open(tmp_path / "data", blob_settings=settings)
    store.writer.submit(runs.add, run()).result()
    yield store
    store.close()


@pytest.fixture
def services(store: Store) -> Iterator[Services]:
    unused = cast(Any, None)
    with ThreadPoolExecutor(1) as executor:
        yield Services(
            writer=store.writer,
            reader=store.reader,
            blobs=store.blobs,
            spool=unused,
            sessions=unused,
            nodes=unused,
            executor=executor,
            evaluators={},
            clock=time.time,
            silence_s=1.0,
            keep_models=1,
            room=unused,
        )


async def test_an_unnamed_blob_is_removed_and_one_that_is_named_again_stays(store: Store, services: Services) -> None:
    kept, gone = (put(store.blobs, content).name for content in (b"kept", b"gone"))
    assert store.blobs.set_aside(kept)
    assert store.blobs.set_aside(gone)
    await store.writer.run(models.add, models.Model(RUN, 0, None, kept, 4, NOW))
    await services.sweep_blobs()
    assert list(store.blobs.stored()) == [kept]
    assert store.blobs.exists(kept)
    assert store.blobs.pending() == frozenset()


async def test_a_server_that_cannot_ask_the_database_deletes_nothing(store: Store, services: Services) -> None:
    name = put(store.blobs, b"made again by another server").name
    store.blobs.set_aside(name)
    store.writer.close()
    with pytest.raises(ServerError):
        await services.sweep_blobs()
    store.blobs.keep([name])
    assert store.blobs.facts(name) is not None
