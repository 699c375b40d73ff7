from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from atoll.server.config.limits import Limits
from atoll.server.errors import LimitExceededError, ServerError
from atoll.server.identity import CertificateRequestError, TokenUnknownError
from atoll.server.rpc.enrolment_rate import EnrolmentRate
from atoll.wire.renewal import renewal_proof
from atoll.wire.v1 import enrolment_pb2, enrolment_pb2_grpc
from tests.patience import WAIT_S
from tests.server.rpc.world import Key, World, refusal, refused_code

PEER = "ipv4:10.0.0.1:50000"


def code_at(rate: EnrolmentRate, peer: str = PEER, error: Exception | None = None) -> str:
    try:
        with rate.attempt(peer):
            if error is not None:
                raise error
    except ServerError as refused:
        return refused.detail.code
    return ""


def test_attempts_in_a_minute() -> None:
    now = 0.0
    rate = EnrolmentRate(Limits(enrolments_per_minute=2), lambda: now)
    assert [code_at(rate) for _ in range(3)] == ["", "", "enrolment.rate"]
    assert code_at(rate, "ipv4:10.0.0.2:1") == ""
    now = 61.0
    assert code_at(rate) == ""


def test_wrong_tokens_in_an_hour() -> None:
    now = 0.0
    rate = EnrolmentRate(Limits(wrong_tokens_per_hour=2), lambda: now)
    wrong = TokenUnknownError("no such token")
    assert [code_at(rate, error=wrong) for _ in range(3)] == ["token.unknown", "token.unknown", "enrolment.guesses"]
    assert code_at(rate) == "enrolment.guesses"
    with pytest.raises(LimitExceededError) as caught, rate.attempt(PEER):
        pass
    now = caught.value.detail.retry_after_s or 0.0
    assert now > 0.0
    assert code_at(rate) == ""


def test_renewals_in_a_minute() -> None:
    now = 0.0
    rate = EnrolmentRate(Limits(enrolments_per_minute=2), lambda: now)
    rate.renewal(PEER)
    rate.renewal(PEER)
    with pytest.raises(LimitExceededError, match=r"more than 2 renewals from 10\.0\.0\.1 in a minute"):
        rate.renewal(PEER)
    assert code_at(rate) == ""
    rate.renewal("ipv4:10.0.0.2:1")
    now = 61.0
    rate.renewal(PEER)


def test_other_mistakes_are_no_guesses() -> None:
    rate = EnrolmentRate(Limits(wrong_tokens_per_hour=1))
    for _ in range(5):
        assert code_at(rate, error=CertificateRequestError("not PEM")) == "identity.request"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path / "data", limits=Limits(wrong_tokens_per_hour=2)) as world:
        yield world


async def test_who_guesses_tokens_is_shut_out_for_a_while(world: World) -> None:
    token, key = await world.token(), Key()
    for _ in range(2):
        guess = world.enrol_with(token, key, secret="guess")
        assert (await refused_code(guess)) == ("UNAUTHENTICATED", "token.unknown")
    found = await refusal(world.enrol_with(token, key))
    assert found.detail is not None
    assert (found.status.name, found.detail.code) == ("RESOURCE_EXHAUSTED", "enrolment.guesses")
    assert found.detail.retry_after_s


async def test_renewals_go_on_meanwhile(world: World) -> None:
    """An aggregator's participants renew from the same address as a caller who guesses tokens there."""
    token, key = await world.token(), Key()
    enrolled = await world.enrol_with(token, key)
    for _ in range(3):
        await refused_code(world.enrol_with(token, key, secret="guess"))
    assert (await refused_code(world.enrol_with(token, key)))[1] == "enrolment.guesses"
    csr = Key().csr
    signature = key.key.sign(renewal_proof(csr), ec.ECDSA(hashes.SHA256()))
    request = enrolment_pb2.RenewExpiredRequest(
        certificate_pem=enrolled.certificate_pem, csr_pem=csr, signature=signature
    )
    stub = enrolment_pb2_grpc.EnrolmentServiceStub(await world.channel(address=world.addresses.enrolment))
    assert (await stub.RenewExpired(request, timeout=WAIT_S)).certificate_pem
