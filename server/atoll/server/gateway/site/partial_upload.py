"""Sends a partial sum to the server, piece by piece; pieces that have arrived are not sent again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor

from blake3 import blake3

from atoll.server.aggregation import PartialSum
from atoll.server.gateway.pieces import bounds_of, pack, piece_count
from atoll.server.gateway.site.link import SERVER, Line
from atoll.server.rpc.internal_calls import as_server_errors
from atoll.server.threads import in_thread
from atoll.wire.v1 import gateway_pb2

CALL_S = 30.0


class PartialUpload:
    """Sends partial sums; one instance per gateway.

    Args:
        line: the connection to the server.
        executor: threads that read, hash and pack.
        sent: called with the payload bytes of each piece.

    Attributes:
        steps: number of pieces hashed and, unless the server had them, packed; at most a few of them wait to be sent.
    """

    def __init__(self, line: Callable[[], Line], executor: Executor, sent: Callable[[int], None]) -> None:
        self._line = line
        self._executor = executor
        self._sent = sent
        self.steps = 0

    async def send(self, name: str, partial: PartialSum) -> None:
        """Send the sum that the server calls ``name``, or its missing rest.

        Raises:
            ServerError: if there is no connection, or the server refuses the sum.
        """
        stub = self._line().gateway
        async with as_server_errors(SERVER):
            status = await stub.GetPartialStatus(gateway_pb2.GetPartialStatusRequest(name=name), timeout=CALL_S)
            await stub.PutPartial(self._messages(name, partial, status.next))

    async def _messages(
        self, name: str, partial: PartialSum, first: int
    ) -> AsyncIterator[gateway_pb2.PutPartialRequest]:
        """Yield the pieces from ``first`` on; all pieces are hashed."""
        hasher = blake3()

        def piece(index: int) -> gateway_pb2.PutPartialRequest | None:
            sums = partial.sum_block(*bounds_of(index, partial.size))
            hasher.update(sums.astype("<i8", copy=False).tobytes())
            if index < first:
                return None
            packed = pack(sums)
            return gateway_pb2.PutPartialRequest(
                index=index, shift=packed.shift, width=packed.width, payload=packed.payload
            )

        for index in range(piece_count(partial.size)):
            message = await in_thread(self._executor, piece, index)
            self.steps += 1
            if message is not None:
                if index == first:
                    message.name = name
                self._sent(len(message.payload))
                yield message
        # if all pieces have arrived, this message names the sum
        yield gateway_pb2.PutPartialRequest(
            name=name if first >= piece_count(partial.size) else "", digest=hasher.digest()
        )
