"""Ingest workers as real processes."""

import asyncio
import os
import signal
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from atoll.server.errors import SetupError
from atoll.server.ingest.node_api import Node
from atoll.server.ingest.node_pool import NodePool
from atoll.server.process import worker_pool
from atoll.wire.messages import manifest_from_proto
from atoll.wire.v1 import control_pb2, participation_pb2, tensors_pb2, transfer_pb2
from tests.patience import WAIT_S, kept, until
from tests.server.rpc.world import Participant, Stream, World, job, refused_code, update_values

pytestmark = pytest.mark.system

MEMBERS = 4
FLOAT32 = tensors_pb2.Encoding.ValueType(tensors_pb2.ENCODING_FLOAT32)
COUNTED = transfer_pb2.ReportResponse.DISPOSITION_COUNTED


def processes() -> list[psutil.Process]:
    """The worker processes of this process."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "atoll.server.process.worker_process" in " ".join(child.cmdline())
    ]


async def receiving(world: World, participant: Participant) -> Participant:
    """The participant's stub for the transfer port, over a separate connection."""
    address = world.addresses.transfer or world.addresses.main
    channel = await world.channel(participant.key.pem, participant.certificate, address)
    return Participant(channel, participant.name, participant.key, participant.certificate)


async def arrive(world: World) -> tuple[list[Participant], list[Stream]]:
    """Four participants check in."""
    people = [await world.participant() for _ in range(MEMBERS)]
    streams = [Stream(person.participation.CheckIn()) for person in people]
    for person, stream in zip(people, streams, strict=True):
        await stream.write(
            participation_pb2.CheckInRequest(
                hello=participation_pb2.Hello(protocol=1, examples=10, encodings=[FLOAT32])
            )
        )
        welcome = await stream.next("welcome")
        assert welcome.participant == person.name
        assert welcome.transfer_address == world.addresses.transfer
    return people, streams


async def begin(world: World) -> tuple[str, list[Participant], participation_pb2.RoundKey]:
    """Open a round of four new members."""
    people, streams = await arrive(world)
    run, at = await opened_with(world, streams)
    return run, people, at


async def opened_with(world: World, streams: list[Stream]) -> tuple[str, participation_pb2.RoundKey]:
    """Open a round of those who have checked in."""
    run = await world.submit(job(size=MEMBERS))
    invitations = [await invited(stream) for stream in streams]
    return run, invitations[0].key


async def invited(stream: Stream) -> participation_pb2.Participate:
    """The next invitation; other instructions are skipped."""
    while (message := await stream.read()) is not None:
        if message.WhichOneof("message") == "participate":
            return message.participate
    raise AssertionError("the stream ended")


async def model_of(world: World, run: str) -> str:
    await world.until(run, "finished")
    answer = await world.operator.control.GetRunModel(control_pb2.GetRunModelRequest(run=run), timeout=WAIT_S)
    return answer.model.blob


async def report(world: World, person: Participant, at: participation_pb2.RoundKey, seed: int) -> None:
    """Report, over a new connection if the current one is lost with its worker."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                answer = await (await receiving(world, person)).report(at, update_values(seed))
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
            else:
                assert answer.disposition == COUNTED
                return


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model from the same reports with one process."""

    async def alone() -> str:
        async with World(tmp_path_factory.mktemp("reference") / "data") as world:
            run, people, at = await begin(world)
            for seed, person in enumerate(people):
                await report(world, person, at, seed)
            return await model_of(world, run)

    return asyncio.run(alone())


class Arrivals:
    """Tracks nodes that become ready."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: asyncio.Queue[str] = asyncio.Queue()
        add = NodePool.add

        def noted(pool: NodePool, node: Node) -> None:
            add(pool, node)
            self.names.put_nowait(node.name)

        monkeypatch.setattr(NodePool, "add", noted)


async def metrics(world: World) -> dict[str, dict[str, float]]:
    """Every sample by name and process."""
    url = f"http://{world.addresses.metrics}/metrics"
    text = (await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=WAIT_S).read())).decode()
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            found.setdefault(one.name, {})[one.labels.get("node", "")] = one.value
    return found


@pytest.fixture
def arrivals(monkeypatch: pytest.MonkeyPatch) -> Arrivals:
    return Arrivals(monkeypatch)


@pytest.fixture
async def crowd(tmp_path: Path, arrivals: Arrivals) -> AsyncIterator[World]:
    """A server with two workers."""
    async with World(tmp_path / "data", workers=2, drain_s=1.0) as world:
        assert {arrivals.names.get_nowait() for _ in range(3)} == {"main", "worker-0", "worker-1"}
        yield world
    assert processes() == []


async def test_two_workers_make_the_model_of_one_and_answer_as_the_server_does(crowd: World, reference: str) -> None:
    people, streams = await arrive(crowd)
    run, at = await opened_with(crowd, streams)
    await asyncio.gather(*(report(crowd, person, at, seed) for seed, person in enumerate(people)))
    assert await model_of(crowd, run) == reference
    await assert_answers(crowd, people, *await opened_with(crowd, streams))


async def assert_answers(crowd: World, people: list[Participant], run: str, at: participation_pb2.RoundKey) -> None:
    """Workers refuse what the server refuses, and count what they receive."""
    person = await receiving(crowd, people[0])
    blob = (
        await crowd.operator.control.GetRunModel(control_pb2.GetRunModelRequest(run=run), timeout=WAIT_S)
    ).model.blob
    answer = await person.transfer.GetManifest(transfer_pb2.GetManifestRequest(blob=blob), timeout=WAIT_S)
    assert manifest_from_proto(answer.manifest).name == blob
    await person.report(at, update_values(0))
    assert await refused_code(person.claim(at, "0" * 64)) == ("FAILED_PRECONDITION", "report.conflict")
    bad = update_values(1)
    bad[0] = float("nan")
    other = await receiving(crowd, people[1])
    assert await refused_code(other.send(at, bad)) == ("INVALID_ARGUMENT", "update.not_finite")
    await crowd.operator.control.RevokeParticipant(
        control_pb2.RevokeParticipantRequest(participant=people[2].name), timeout=WAIT_S
    )
    revoked = await receiving(crowd, people[2])
    since = time.monotonic()
    assert await refused_code(revoked.status(at)) == ("UNAUTHENTICATED", "certificate.revoked")
    assert kept(time.monotonic() - since, 5.0)
    figures = await metrics(crowd)
    assert sum(figures["atoll_upload_bytes_total"][node] for node in ("worker-0", "worker-1")) > 0
    assert figures["atoll_upload_bytes_total"]["main"] == 0
    assert set(figures["process_resident_memory_bytes"]) == {"main", "worker-0", "worker-1"}


EACH_TWICE = [
    pytest.param([fault] * 2, id=fault.name, marks=pytest.mark.every_fault)
    for fault in (signal.SIGKILL, signal.SIGSTOP)
]


@pytest.mark.parametrize("faults", [pytest.param([signal.SIGKILL, signal.SIGSTOP], id="one-of-each"), *EACH_TWICE])
async def test_killed_and_frozen_workers_are_replaced_and_nothing_is_lost(
    crowd: World,
    reference: str,
    arrivals: Arrivals,
    monkeypatch: pytest.MonkeyPatch,
    faults: list[signal.Signals],
) -> None:
    run, people, at = await begin(crowd)
    partials = crowd.config.data / "partials"
    await report(crowd, people[0], at, 0)
    await report(crowd, people[1], at, 1)
    while not arrivals.names.empty():
        arrivals.names.get_nowait()
    before = processes()
    for process, fault in zip(before, faults, strict=True):
        process.send_signal(fault)
    (partials / "worker-0-0123456789abcdef.partial").write_bytes(b"half a sum")
    with monkeypatch.context() as patch:  # no longer than this: a busy worker may take more than a second to answer
        patch.setattr(worker_pool, "ANSWER_S", 1.0)
        await until(lambda: not any(process.is_running() for process in before))
    async with asyncio.timeout(WAIT_S):
        again = {await arrivals.names.get(), await arrivals.names.get()}
    assert again == {"worker-0", "worker-1"}
    assert not any(process.is_running() for process in before)
    assert list(partials.iterdir()) == []
    assert (await metrics(crowd))["atoll_worker_restarts_total"][""] == 2
    await report(crowd, people[2], at, 2)
    await report(crowd, people[3], at, 3)
    assert await model_of(crowd, run) == reference


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a path short enough for Unix sockets in it."""
    with tempfile.TemporaryDirectory(prefix="at-") as folder:
        yield Path(folder)


async def test_workers_end_with_a_coordinator_that_is_killed(tmp_path: Path, short_folder: Path) -> None:
    """They hold the reading end of a pipe that closes when it ends in any way."""
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from atoll.server.config.config import ServerConfig\n"
        "from atoll.server.process.server import Daemon\n"
        "async def main():\n"
        f"    await Daemon(ServerConfig(data=Path({str(tmp_path / 'data')!r}), port=0, workers=2, drain_s=0)).start()\n"
        "    print('serving', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    coordinator = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(short_folder)},  # a server that is killed leaves its sockets there
    )
    assert coordinator.stdout is not None
    assert await asyncio.wait_for(coordinator.stdout.readline(), WAIT_S) == b"serving\n"
    children = processes()
    assert len(children) == 2
    coordinator.kill()
    await coordinator.wait()
    gone, alive = await asyncio.to_thread(psutil.wait_procs, children, WAIT_S)
    assert (len(gone), alive) == (2, [])


async def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        world = World(tmp_path / "data", workers=2, transfer_port=taken.getsockname()[1])
        with pytest.raises(SetupError, match="cannot listen") as caught:
            await world.daemon.start()
    assert "--transfer-port" in caught.value.detail.remedy
    assert processes() == []


async def test_a_worker_that_does_not_start_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SetupError, match="ended with status 1"):
        await World(tmp_path / "data", workers=2).daemon.start()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-such-python"))
    with pytest.raises(SetupError, match="No such file"):
        await World(tmp_path / "data", workers=2).daemon.start()
