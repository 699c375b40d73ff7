"""Wrong messages of a server: the participant bounds, refuses or ignores each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from atoll.client import ClientError, RefusedError
from atoll.client._connection import identity as identities
from atoll.client._connection.endpoint import Endpoint
from atoll.client._connection.enrolment import renewed
from atoll.client._session.check_in import MAX_ANSWERS
from atoll.client.events import Connected, Disconnected, Renewed
from atoll.wire.v1 import enrolment_pb2
from atoll.wire.v1 import participation_pb2 as part
from tests.client._connection.test_enrolment import enrol
from tests.client.conftest import Start
from tests.client.harness import MODEL, AddOne, Federation, running
from tests.client.tls import SecureFederation
from tests.fuzz.hostile import Answer, Hostile

pytestmark = pytest.mark.slow


@pytest.fixture
async def secure() -> AsyncIterator[SecureFederation]:
    async with SecureFederation(MODEL) as federation:
        yield federation


def says(**message: part.Welcome | part.ComeBack | part.Participate) -> bytes:
    return part.CheckInResponse(**message).SerializeToString()  # type: ignore[arg-type]  # one of its three


@pytest.mark.parametrize(
    ("remaining_s", "renewals"),
    [(float("nan"), 0), (float("inf"), 0), (1e308, 0), (-1.0, 0), (float("-inf"), 0), (0.0, 1), (1e-300, 1)],
)
async def test_no_word_on_a_certificate_makes_renewals_without_a_pause(
    secure: SecureFederation, tmp_path: Path, remaining_s: float, renewals: int
) -> None:
    """Three rounds pass meanwhile; the certificates are valid for ten minutes."""
    identity = await enrol(secure.token(), tmp_path)
    secure.remaining_s = remaining_s
    run = running(secure, AddOne(), tmp_path, endpoint=Endpoint(secure.address, identity))
    await run.saw(Connected, times=1 + renewals)
    for round_ in range(3):
        secure.invite(round_)
        await secure.report()
    assert len(run.of(Renewed)) == secure.renewals == renewals
    await run.stop()


@pytest.mark.parametrize("garbage", [b"\xff\xfe", b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"])
async def test_what_is_no_certificate_is_refused(secure: SecureFederation, tmp_path: Path, garbage: bytes) -> None:
    identity = await enrol(secure.token(), tmp_path)
    own = identity.certificate_pem.encode()
    answers = [enrolment_pb2.RenewResponse(certificate_pem=garbage)]
    answers += [enrolment_pb2.RenewResponse(certificate_pem=own, ca_certificate_pem=garbage)] if garbage else []
    for answer in answers:
        with pytest.raises(RefusedError, match="certificate"):
            renewed(identity, answer, identity.key_pem)
    assert identities.load(tmp_path) == identity


@pytest.mark.parametrize("after_s", [0.0, float("nan"), -1.0])
async def test_come_back_at_once_over_and_over_is_not_taken_at_its_word(tmp_path: Path, after_s: float) -> None:
    order = says(come_back=part.ComeBack(after_s=after_s))
    async with Hostile({"CheckIn": [Answer([order])]}) as server:
        run = running(server, AddOne(), tmp_path)
        waits = [event.retry_in_s for event in await run.saw(Disconnected, times=30)]
        await run.stop()
    assert sum(waits) > 0.1  # 0.7 on average: 25 of them are drawn from up to 50 ms


async def test_a_place_for_transfers_that_cannot_be_ends_the_session(tmp_path: Path) -> None:
    async with Hostile({"CheckIn": [Answer([says(welcome=part.Welcome(transfer_address="nowhere"))])]}) as server:
        with pytest.raises(ClientError, match=r"the server names an invalid address .* 'nowhere'"):
            await running(server, AddOne(), tmp_path).finished()


async def test_a_server_that_invites_and_never_reads_is_left(tmp_path: Path) -> None:
    """Answers do not pile up: with more than 1,000 left to write, the participant gives up the stream."""
    message = Federation(MODEL).participate()
    message.settings["x" * 1000].SetInParent()
    invitations = []
    for round_ in range(6000):
        message.key.round = round_
        invitations.append(says(participate=message))
    async with Hostile({"CheckIn": [Answer([says(welcome=part.Welcome()), *invitations], ends=False)]}) as server:
        run = running(server, AddOne(), tmp_path)
        (left,) = (await run.saw(Disconnected))[:1]
        await run.stop()
    assert f"{MAX_ANSWERS} are waiting" in left.reason


async def test_a_run_with_a_name_that_is_none_has_no_answer(server: Federation, start: Start) -> None:
    run = start(AddOne())
    await server.hello()
    server.invite(run="r" * 10_000)
    server.stop(run="r" * 10_000)
    server.invite()
    assert (await server.reply()).key.run == "r1"
    await server.report()
    await run.stop()


async def test_a_model_of_another_size_than_its_layout_is_not_fetched(server: Federation, start: Start) -> None:
    start(AddOne())
    await server.hello()
    server.set_model({name: np.zeros(100_000, np.float32) for name in MODEL})
    server.invite()
    await server.reply()
    reply = await server.reply()
    assert reply.verdict == part.TaskReply.VERDICT_FAILED
    assert "has 800000 bytes, its layout has 24120" in reply.reason
    assert server.download_starts == []


@pytest.mark.parametrize("name", ["", "../../x", "g" * 64, "0" * 65])
async def test_a_blob_with_a_name_that_none_has_is_declined(server: Federation, start: Start, name: str) -> None:
    start(AddOne())
    await server.hello()
    message = server.participate()
    message.inputs[0].blob = name
    server.push(part.CheckInResponse(participate=message))
    reply = await server.reply()
    assert reply.verdict == part.TaskReply.VERDICT_DECLINED
    assert "expected 64 hexadecimal digits" in reply.reason


async def test_chunks_are_never_smaller_than_allowed(
    server: Federation, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that asks for chunks of one byte would have the participant keep a header for each element."""
    tiny = server.welcome()
    tiny.chunk_bytes = 1
    monkeypatch.setattr(server, "welcome", lambda: tiny)
    start(AddOne())
    await server.hello()
    server.invite()
    await server.report()
    assert server.upload_streams == [24]  # 24,120 bytes in chunks of 1,024
