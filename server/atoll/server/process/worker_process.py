"""One ingest worker process: receives and folds updates on a port that all workers share.

``process.worker_pool`` starts it as ``python -m atoll.server.process.worker_process`` with one JSON argument
(``WorkerOrder``). It ends with its coordinator: its standard input is a pipe from the coordinator, which then closes.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import grpc.aio
from pydantic import BaseModel, ConfigDict

from atoll.processes.heap import keep_chunks
from atoll.server.config.config import ServerConfig
from atoll.server.errors import ServerError
from atoll.server.identity import Authority
from atoll.server.ingest.bucket_uploads import uploads_beside
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node import IngestNode
from atoll.server.ingest.spool import Spool
from atoll.server.process.draining import drain
from atoll.server.process.listeners import Port, add_health_and_reflection, bind, make_server, server_credentials
from atoll.server.process.logs import configure_logging
from atoll.server.process.warming import Warming
from atoll.server.rpc.admission import Admission
from atoll.server.rpc.authentication import Authenticator
from atoll.server.rpc.coordinator_service import RemoteCoordinator
from atoll.server.rpc.download_room import DownloadRoom
from atoll.server.rpc.transfer import SERVICE, TransferService
from atoll.server.rpc.worker_service import WorkerService
from atoll.server.stores.blob_place import open_chosen
from atoll.server.stores.store import SPOOL_FOLDER
from atoll.server.telemetry.node import NodeFigures
from atoll.wire.v1.ingest_pb2_grpc import add_WorkerServiceServicer_to_server

THREADS = 4


class WorkerOrder(BaseModel):
    """The argument of a worker process; paths of Unix sockets are ``unix:`` addresses.

    ``standing_by``: whether the server is a standby, which deletes no uploads from the bucket.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    config: ServerConfig
    port: int
    coordinator: str
    socket: str
    log_level: str
    json_log: bool
    standing_by: bool = False


async def serve(order: WorkerOrder) -> None:
    """Serve until SIGTERM, or the end of standard input."""
    keep_chunks()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C reaches the whole group; the coordinator decides
    loop.add_reader(sys.stdin.fileno(), _coordinator_ended, loop, stopping)
    executor = ThreadPoolExecutor(THREADS, thread_name_prefix=order.name)
    config, figures = order.config, NodeFigures()
    figures.start()
    async with grpc.aio.insecure_channel(order.coordinator) as channel:
        room = config.storage.room(config.data)
        blobs = open_chosen(config.data, config.storage.blob_settings)
        coordinator, uploads = RemoteCoordinator(channel), uploads_beside(blobs)
        if order.standing_by and uploads is not None:
            uploads = uploads.of_others
        spool = Spool(config.data / SPOOL_FOLDER, room, uploads)
        authenticator = Authenticator(coordinator, Admission(config.limits), insecure=config.insecure)

        def shut_out(caller: Caller, error: ServerError) -> None:
            coordinator.forget()
            authenticator.calls.end(caller, error)

        transfer = TransferService(
            node=order.name,
            coordinator=coordinator,
            authenticator=authenticator,
            blobs=blobs,
            spool=spool,
            executor=executor,
            room=DownloadRoom.of(config.limits, processes=config.workers + 1),
            meter=figures.meter,
        )
        connections = authenticator.connections
        public = make_server(
            Port.TRANSFER,
            config.limits,
            figures.meter.refused,
            authenticator.enter,
            connections,
            ping_s=config.ping_s,
        )
        private = make_server(Port.INSIDE)
        public.add_generic_rpc_handlers((transfer.handler(),))
        await add_health_and_reflection(public, [SERVICE])
        node = IngestNode(order.name, spool, figures.meter.folded)
        add_WorkerServiceServicer_to_server(WorkerService(node, executor, figures.exposition, shut_out), private)
        await add_health_and_reflection(private, [])
        private.add_insecure_port(order.socket)
        connections.port = bind(public, config.host, order.port, _credentials(config))
        await public.start()
        await private.start()
        warming = Warming(executor)
        await stopping.wait()
        warming.stop()
        left_s = await drain(figures.meter, config.drain_s)
        await asyncio.gather(public.stop(left_s), private.stop(left_s))
    figures.stop()
    executor.shutdown(wait=True)


def _coordinator_ended(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    loop.remove_reader(sys.stdin.fileno())
    stopping.set()


def _credentials(config: ServerConfig) -> grpc.ServerCredentials | None:
    if config.insecure:
        return None
    authority = Authority.open(config.data / "ca", now=time.time())
    return server_credentials(authority, config.certificate_names, mutual=True, clock=time.time)


def main() -> None:
    """Run one worker."""
    order = WorkerOrder.model_validate_json(sys.argv[1])
    configure_logging(order.log_level, as_json=order.json_log)
    asyncio.run(serve(order))


if __name__ == "__main__":
    main()
