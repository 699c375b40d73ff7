"""A server whose models are in a bucket: the same bits after kills, without cache, or with the bucket down."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from atoll.server.buckets import BucketPlace, open_bucket, parse_place
from tests.patience import until_now
from tests.postgresql import DatabaseServer
from tests.system.conftest import Hire, Serve
from tests.system.mid_round import mid_round
from tests.system.processes import atoll
from tests.system.proxy import Proxy
from tests.system.reference import JOB, KILLED_JOB, KILLED_MODEL, KILLED_ROUNDS, MODEL
from tests.system.servers import Server
from tests.system.test_server_crashes import assert_each_counted_once

pytestmark = pytest.mark.system


def in_bucket(folder: Path, place: BucketPlace, **settings: str) -> tuple[str, str]:
    """The options of a server whose models are in a bucket."""
    lines = {"blobs": place.url, "blobs_endpoint": place.endpoint, **settings}
    path = folder / "server.toml"
    path.write_text("[storage]\n" + "".join(f'{key} = "{value}"\n' for key, value in lines.items() if value))
    return "--config", str(path)


def forget_copies(server: Server) -> None:
    """Empty the cache; running servers have files open in it."""
    copies = list(server.data.glob("blobs/[0-9a-f][0-9a-f]/*"))
    assert copies
    for copy in copies:
        copy.unlink(missing_ok=True)  # the server may be removing old models


def keys(place: BucketPlace, folder: str) -> list[str]:
    """The objects in a folder of a bucket."""
    return [found.key for found in open_bucket(place).listed(folder)]


def uploads_are_gone(place: BucketPlace) -> None:
    """Wait until no upload is left: those of a run are deleted once its end is stored, and known to its operator."""
    until_now(lambda: not keys(place, "uploads"), 0.05)


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.every_case)])
def test_killed_in_mid_round_it_goes_on_without_its_cache_with_the_same_bits(
    serve: Serve,
    hire: Hire,
    s3: BucketPlace,
    database: str,
    request: pytest.FixtureRequest,
    reference_model: bytes,
    tmp_path: Path,
) -> None:
    url = ""
    if database == "postgresql":
        database_server: DatabaseServer = request.getfixturevalue("database_server")
        url = database_server.new("in_bucket")
    server = serve("bucket", *in_bucket(tmp_path, s3, database=url))
    middle = mid_round(server, hire(server))
    server.kill()
    forget_copies(server)
    shutil.rmtree(server.data / "spool")
    # Those of the round before may still be there: they are deleted beside the next round.
    assert len([key for key in keys(s3, "uploads") if "/1.0/" in key]) == len(middle.done)
    server.start()
    middle.at_work.go()
    server.operator.finished(middle.run)
    forget_copies(server)
    assert server.operator.model(middle.run) == reference_model
    assert_each_counted_once(server.operator, middle.run)
    assert keys(s3, "blobs")
    uploads_are_gone(s3)


def test_large_uploads_of_a_lost_spool_come_from_the_bucket(
    serve: Serve, hire: Hire, s3: BucketPlace, killed_undisturbed: bytes, tmp_path: Path
) -> None:
    """Of several chunks; one was received by a worker process, in a segment of its own."""
    server = serve("large", "--workers", "2", *in_bucket(tmp_path, s3))
    middle = mid_round(server, hire(server), job=KILLED_JOB, model=KILLED_MODEL)
    server.kill()
    forget_copies(server)
    shutil.rmtree(server.data / "spool")
    server.start()
    middle.at_work.go()
    server.operator.finished(middle.run)
    assert server.operator.model(middle.run) == killed_undisturbed
    assert [seen.attempt for seen in server.operator.rounds(middle.run)] == [0] * KILLED_ROUNDS
    uploads_are_gone(s3)


def test_moved_in_mid_round_there_and_back_the_run_ends_with_the_same_bits(
    serve: Serve, hire: Hire, s3: BucketPlace, reference_model: bytes
) -> None:
    """The uploads of the open round move too: each time the server starts without its old files."""
    server = serve("moved")
    crew = hire(server)
    done = [crew.start("Steady", index=0), crew.start("Steady", index=1)]
    at_work = crew.start("Held", index=2, rounds=[1, 2])
    run = server.operator.submit(JOB, MODEL)
    for held_round, place in ((1, s3.url), (2, "directory")):
        at_work.wait("held", round=held_round)
        for client in done:
            client.wait("reported", round=held_round)
        server.kill()
        if place == "directory":
            shutil.rmtree(server.data / "spool")
            forget_copies(server)
        moved = atoll("server", "migrate", "--data", str(server.data), "--blobs", place, *_endpoint(place, s3))
        assert moved["copied"] > 0
        server.start()
        at_work.go()
    server.operator.finished(run)
    assert server.operator.model(run) == reference_model
    assert_each_counted_once(server.operator, run)


def _endpoint(place: str, s3: BucketPlace) -> tuple[str, ...]:
    return ("--blobs-endpoint", s3.endpoint) if place == s3.url else ()


def test_several_workers_hand_out_models_of_a_bucket(
    serve: Serve, hire: Hire, s3: BucketPlace, reference_model: bytes, tmp_path: Path
) -> None:
    server = serve("workers", "--workers", "2", *in_bucket(tmp_path, s3))
    crew = hire(server)
    for index in range(3):
        crew.start("Steady", index=index)
    run = server.operator.submit(JOB, MODEL)
    server.operator.finished(run)
    assert server.operator.model(run) == reference_model


def test_the_bucket_goes_away_in_mid_round_and_the_run_goes_on_when_it_is_back(
    serve: Serve, hire: Hire, s3: BucketPlace, reference_model: bytes, tmp_path: Path
) -> None:
    with Proxy(s3.endpoint.removeprefix("http://")) as proxy:
        server = serve("away", *in_bucket(tmp_path, parse_place(s3.url, f"http://{proxy.address}")))
        crew = hire(server)
        done = [crew.start("Steady", index=0), crew.start("Steady", index=1)]
        at_work = crew.start("Held", index=2, rounds=[1])
        run = server.operator.submit(JOB, MODEL)
        at_work.wait("held", round=1)
        for client in done:
            client.wait("reported", round=1)
        proxy.cut()
        at_work.go()
        server.process.wait_for_log("the object store does not answer")
        proxy.mend()
        server.operator.finished(run)
        assert server.operator.model(run) == reference_model
        assert_each_counted_once(server.operator, run)
