"""A participant that checks in repeatedly, as fast as the server allows."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import grpc

from atoll.client._connection.enrolment import enrol
from atoll.wire.messages import PROTOCOL
from atoll.wire.status import detail_from_trailers
from atoll.wire.v1 import participation_pb2, participation_pb2_grpc
from tests.patience import WAIT_S

HELLO = participation_pb2.CheckInRequest(hello=participation_pb2.Hello(protocol=PROTOCOL, examples=1))
"""It takes no encoding, so that no round is drawn with it."""


class Flood:
    """Checks in from several threads of one identity. ``answers`` counts codes of refusals; "" counts welcomes."""

    def __init__(self, token: str, state: Path, threads: int) -> None:
        self.answers: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._over = threading.Event()
        identity = enrol(token, state)
        self._channel = grpc.secure_channel(identity.server_address, identity.credentials())
        self._threads = [threading.Thread(target=self._come_and_go) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._channel.close()

    def _come_and_go(self) -> None:
        stub = participation_pb2_grpc.ParticipationServiceStub(self._channel)
        while not self._over.is_set():
            code = ""
            call = stub.CheckIn(iter([HELLO]), timeout=WAIT_S)
            try:
                next(iter(call), None)
                call.cancel()
            except grpc.RpcError as error:
                detail = detail_from_trailers([(item.key, item.value) for item in error.trailing_metadata() or ()])
                code = detail.code if detail is not None else error.code().name
            with self._lock:
                self.answers[code] += 1
