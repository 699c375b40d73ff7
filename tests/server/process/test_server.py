import asyncio
import json
import socket
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from atoll.server.config.config import ServerConfig
from atoll.server.errors import InvalidRequestError, ServerError, SetupError
from atoll.server.process import draining, warming
from atoll.server.process.server import Daemon
from atoll.server.stores import StoreUnavailableError
from atoll.wire.v1 import control_pb2
from tests.patience import WAIT_S, until
from tests.ports import free_ports
from tests.server.rpc.world import World

SERVICES = {
    "atoll.wire.v1.ControlService",
    "atoll.wire.v1.ParticipationService",
    "atoll.wire.v1.RenewalService",
    "atoll.wire.v1.TransferService",
}


def config(data: Path, **settings: Any) -> ServerConfig:
    chosen: dict[str, Any] = {"data": data, "port": 0, "drain_s": 0.0} | settings
    return ServerConfig(**chosen)


async def started_and_stopped(settings: ServerConfig) -> None:
    daemon = Daemon(settings)
    await daemon.start()
    await daemon.stop()


def operator_of(world: World) -> dict[str, str]:
    assert world.addresses.operator is not None
    kept: dict[str, str] = json.loads(world.addresses.operator.read_text())
    return kept


def test_it_is_made_before_the_loop_that_it_runs_on(tmp_path: Path) -> None:
    daemon = Daemon(config(tmp_path / "data"))

    async def serve() -> None:
        await daemon.start()
        await daemon.stop()

    asyncio.run(serve())


class TestStart:
    @pytest.mark.parametrize("option", ["port", "enrol_port"])
    async def test_a_port_in_use_is_reported_and_leaves_nothing_open(self, tmp_path: Path, option: str) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(SetupError, match=str(taken.getsockname()[1])) as caught:
                await Daemon(config(tmp_path / "data", **{option: taken.getsockname()[1]})).start()
        assert "--port" in caught.value.detail.remedy
        await started_and_stopped(config(tmp_path / "data"))  # the directory is free again

    async def test_it_serves_while_its_kernels_are_compiled_and_a_stop_gives_them_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compiling, ended = threading.Event(), threading.Event()

        def without_end(given_up: Callable[[], bool]) -> float:
            compiling.set()
            while not given_up():
                ended.wait(0.01)
            ended.set()
            return 0.0

        monkeypatch.setattr(warming, "warm", without_end)
        daemon = Daemon(config(tmp_path / "data", insecure=True))
        addresses = await daemon.start()
        assert await asyncio.to_thread(compiling.wait, WAIT_S)
        async with grpc.aio.insecure_channel(addresses.main) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        await daemon.stop()
        assert ended.is_set()

    async def test_one_server_per_directory(self, world: World) -> None:
        with pytest.raises(StoreUnavailableError):
            await Daemon(config(world.config.data)).start()

    async def test_a_bad_evaluator_keeps_the_server_from_starting(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidRequestError, match="no_such_module"):
            await Daemon(config(tmp_path / "data", evaluators=("x=no_such_module:f",))).start()

    async def test_an_address_of_another_machine(self, tmp_path: Path) -> None:
        with pytest.raises(ServerError, match="not of this machine"):
            await Daemon(config(tmp_path / "data", host="192.0.2.1")).start()

    async def test_health_and_reflection_are_served(self, world: World) -> None:
        health: Any = health_pb2_grpc.HealthStub(world.operator.channel)
        for name in ("", *SERVICES):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=WAIT_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        stub: Any = reflection_pb2_grpc.ServerReflectionStub
        call = stub(world.operator.channel).ServerReflectionInfo(iter([asked]))
        listed = {one.name for one in (await call.read()).list_services_response.service}
        assert listed >= SERVICES

    async def test_a_stopping_server_says_so(self, tmp_path: Path) -> None:
        async with World(tmp_path / "data", drain_s=WAIT_S) as world:
            health: Any = health_pb2_grpc.HealthStub(world.operator.channel)
            watched = health.Watch(health_pb2.HealthCheckRequest())
            assert (await watched.read()).status == health_pb2.HealthCheckResponse.SERVING
            stopping = asyncio.create_task(world.daemon.stop())
            assert (await watched.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            watched.cancel()
            await asyncio.wait_for(stopping, WAIT_S)

    async def test_a_stop_says_what_it_waits_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(draining, "PROGRESS_S", 0.05)
        caplog.set_level("INFO")
        async with World(tmp_path / "data", drain_s=WAIT_S) as world:
            health: Any = health_pb2_grpc.HealthStub(world.operator.channel)
            watched = health.Watch(health_pb2.HealthCheckRequest())
            await watched.read()
            stopping = asyncio.create_task(world.daemon.stop())
            await until(lambda: ": open calls" in caplog.text)
            watched.cancel()
            await asyncio.wait_for(stopping, WAIT_S)

    async def test_a_stopped_server_leaves_no_files_to_be_written_over(self, tmp_path: Path) -> None:
        """They contain participants' data, and would never be overwritten with zeros."""
        data = tmp_path / "data"
        free = [data / "spool" / ".free", data / "blobs" / "free"]
        async with World(data):
            for folder in free:
                folder.mkdir()
                (folder / "spent").write_bytes(b"an update")
        assert [path for folder in free for path in folder.iterdir()] == []


class TestOperatorFile:
    async def test_it_is_its_owner_s_and_is_kept(self, tmp_path: Path) -> None:
        port = free_ports()
        async with World(tmp_path / "data", port=port) as world:
            first = operator_of(world)
            assert world.addresses.operator is not None
            assert world.addresses.operator.stat().st_mode & 0o777 == 0o600
        async with World(tmp_path / "data", port=port) as world:
            assert operator_of(world) == first

    async def test_a_new_address_gives_a_new_file(self, tmp_path: Path) -> None:
        async with World(tmp_path / "data") as world:
            first = operator_of(world)
        async with World(tmp_path / "data") as world:
            again = operator_of(world)
            assert again["address"] == world.addresses.main != first["address"]

    @pytest.mark.parametrize("content", ["", "rubbish", "{}", '{"format": "atoll operator 1"}'])
    async def test_a_damaged_file_is_replaced(self, tmp_path: Path, content: str) -> None:
        port = free_ports()
        async with World(tmp_path / "data", port=port) as world:
            path = world.addresses.operator
            assert path is not None
        path.write_text(content)
        async with World(tmp_path / "data", port=port) as world:
            await world.operator.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)

    async def test_a_file_that_the_database_does_not_know_is_replaced(self, tmp_path: Path) -> None:
        """Otherwise the operator would be locked out until it expires."""
        port = free_ports()
        await started_and_stopped(config(tmp_path / "data", port=port))
        with sqlite3.connect(tmp_path / "data" / "atoll.sqlite3") as database:
            database.execute("DELETE FROM certificates")
        database.close()
        async with World(tmp_path / "data", port=port) as world:
            await world.operator.control.ListRuns(control_pb2.ListRunsRequest(), timeout=WAIT_S)

    async def test_plaintext_has_no_credentials(self, tmp_path: Path) -> None:
        async with World(tmp_path / "data", insecure=True) as world:
            assert world.addresses.operator is None


async def test_the_metadata_of_a_call_is_bounded(world: World) -> None:
    call = world.operator.control.ListRuns(
        control_pb2.ListRunsRequest(), timeout=WAIT_S, metadata=(("x-long", "x" * 100_000),)
    )
    with pytest.raises(grpc.aio.AioRpcError):
        await call


async def test_an_oversized_message_is_refused(world: World) -> None:
    request = control_pb2.SubmitRunRequest(job_toml=b"x" * (5 << 20))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.operator.control.SubmitRun(request, timeout=WAIT_S)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
