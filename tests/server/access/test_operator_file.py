import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from atoll.server.access import operator_file as module
from atoll.server.access.certificates import CertificateBook
from atoll.server.access.operator_file import OperatorFile
from atoll.server.errors import UnauthenticatedError
from atoll.server.identity import Authority, OperatorCredential, Peer, Role
from atoll.server.stores import Store
from tests.patience import WAIT_S

DAY_S = 86_400.0
BEGINNING = 1_800_000_000.0


@dataclass
class Clock:
    now: float = BEGINNING

    def __call__(self) -> float:
        return self.now


class Recorder(logging.Handler):
    """Waits for log records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.put_nowait(record.getMessage())

    async def next(self) -> str:
        return await asyncio.wait_for(self.records.get(), WAIT_S)


class Rig:
    """A credential over a real store and authority, with a clock that the test sets; it is checked without pause."""

    def __init__(self, data: Path) -> None:
        self.clock = Clock()
        self.store = Store.open(data)
        self.authority = Authority.open(data / "ca", now=self.clock())
        self.path = data / "operator.json"
        self.book = CertificateBook(self.authority, self.store.writer, self.store.reader, self.clock)
        self.file = self.again()

    def again(self) -> OperatorFile:
        stores = self.store.writer, self.store.reader
        return OperatorFile(self.path, "fl.example.org:7400", self.authority, *stores, self.clock)

    def certificate(self) -> bytes:
        return OperatorCredential.read(self.path).certificate.encode()

    def remaining_s(self) -> float:
        return Peer.from_pem(self.certificate()).not_after - self.clock()

    async def start_again(self) -> bytes:
        """Start again now; returns the resulting certificate."""
        file = self.again()
        await file.start()
        await file.stop()
        return self.certificate()


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(module, "CHECK_S", 0.01)
    made = Rig(tmp_path / "data")
    yield made
    await made.file.stop()
    made.store.close()


@pytest.fixture
def log_lines(caplog: pytest.LogCaptureFixture) -> Iterator[Recorder]:
    caplog.set_level(logging.INFO, module.log.name)
    handler = Recorder()
    module.log.addHandler(handler)
    yield handler
    module.log.removeHandler(handler)


async def test_it_is_renewed_while_the_server_runs(rig: Rig, log_lines: Recorder) -> None:
    """A server that runs for a year never locks its operator out, and copies can be replaced for a month."""
    await rig.file.start()
    assert "written" in await log_lines.next()
    before = rig.certificate()
    for _ in range(6):
        before = rig.certificate()
        rig.clock.now += 61 * DAY_S
        assert "written" in await log_lines.next()
        assert rig.remaining_s() > 89 * DAY_S
        for certificate in (before, rig.certificate()):
            assert (await rig.book.identify(certificate)).role is Role.OPERATOR
    rig.clock.now += 30 * DAY_S
    with pytest.raises(UnauthenticatedError, match="expired"):
        await rig.book.identify(before)


async def test_it_stays_while_it_is_good(rig: Rig) -> None:
    first = await rig.start_again()
    rig.clock.now += 59 * DAY_S
    assert await rig.start_again() == first
    rig.clock.now += 2 * DAY_S
    assert await rig.start_again() != first


async def test_what_cannot_be_renewed_is_told_and_tried_again(rig: Rig, log_lines: Recorder) -> None:
    await rig.file.start()
    assert "written" in await log_lines.next()
    rig.path.unlink()
    rig.path.mkdir()
    assert "tried again later" in await log_lines.next()
    rig.path.rmdir()
    while "written" not in await log_lines.next():
        pass
    assert rig.remaining_s() > 89 * DAY_S


async def test_one_that_ends_with_its_authority_is_not_renewed(rig: Rig) -> None:
    """No credential could last longer, so every check would write a new one."""
    rig.clock.now = rig.authority.not_after - 10 * DAY_S
    first = await rig.start_again()
    assert await rig.start_again() == first
