from collections.abc import Sequence
from pathlib import Path

from atoll.server.errors import ServerError, UnavailableError
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node import FoldItem, IngestNode, SumKey
from tests.server.ingest.uploads import flip


class Calls:
    """A worker in this process, asked as if it were another."""

    def __init__(self, node: IngestNode) -> None:
        self.node = node
        self.gone = False
        self.torn = False
        self.ended: list[tuple[Caller, ServerError]] = []

    def _check(self) -> None:
        if self.gone:
            raise UnavailableError("server.process", f"{self.node.name} does not answer", retry_after_s=1.0)

    async def fold(self, key: SumKey, items: Sequence[FoldItem]) -> None:
        self._check()
        self.node.fold(key, items)

    async def write_partial(self, key: SumKey, items: Sequence[FoldItem], path: Path) -> None:
        self._check()
        self.node.write_partial(key, items, path)
        if self.torn:
            flip(path, -1)

    async def drop(self, run: str, round_number: int, attempt: int) -> None:
        self._check()
        self.node.drop(run, round_number, attempt)

    async def drop_run(self, run: str) -> None:
        self._check()
        self.node.drop_run(run)

    async def end_calls(self, caller: Caller, error: ServerError) -> None:
        self._check()
        self.ended.append((caller, error))
