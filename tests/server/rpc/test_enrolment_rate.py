from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from atoll.server.config.limits import Limits
from atoll.server.errors import LimitExceededError, ServerError
from atoll.server.identity import CertificateRequestError, TokenUnknownError
from atoll.server.rpc.enrolment_rate import MAX_SOURCES, SOURCES, EnrolmentRate
from atoll.wire.renewal import renewal_proof
from atoll.wire.v1 import enrolment_pb2, enrolment_pb2_grpc, gateway_pb2, gateway_pb2_grpc
from tests.patience import WAIT_S
from tests.server.rpc.world import Key, World, refusal, refused_code

ADDRESS, OTHER = "10.0.0.1", "10.0.0.2"


def code_at(rate: EnrolmentRate, source: str = ADDRESS, error: Exception | None = None, *, aggregator: str = "") -> str:
    try:
        with rate.attempt(source, aggregator):
            if error is not None:
                raise error
    except ServerError as refused:
        return refused.detail.code
    return ""


def test_attempts_in_a_minute() -> None:
    now = 0.0
    rate = EnrolmentRate(Limits(enrolments_per_minute=2), lambda: now)
    assert [code_at(rate) for _ in range(3)] == ["", "", "enrolment.rate"]
    assert code_at(rate, OTHER) == ""
    now = 61.0
    assert code_at(rate) == ""


def test_wrong_tokens_in_an_hour() -> None:
    now = 0.0
    rate = EnrolmentRate(Limits(wrong_tokens_per_hour=2), lambda: now)
    wrong = TokenUnknownError("no such token")
    assert [code_at(rate, error=wrong) for _ in range(3)] == ["token.unknown", "token.unknown", "enrolment.guesses"]
    assert code_at(rate) == "enrolment.guesses"
    with pytest.raises(LimitExceededError) as caught, rate.attempt(ADDRESS):
        pass
    now = caught.value.detail.retry_after_s or 0.0
    assert now > 0.0
    assert code_at(rate) == ""


def test_renewals_in_a_minute() -> None:
    now = 0.0
    rate = EnrolmentRate(Limits(enrolments_per_minute=2), lambda: now)
    rate.renewal(ADDRESS)
    rate.renewal(ADDRESS)
    with pytest.raises(LimitExceededError, match=r"more than 2 renewals from 10\.0\.0\.1 in a minute"):
        rate.renewal(ADDRESS)
    assert code_at(rate) == ""
    rate.renewal(OTHER)
    now = 61.0
    rate.renewal(ADDRESS)


class TestAtAnAggregator:
    WRONG = TokenUnknownError("no such token")

    def test_guesses_from_one_address_there_do_not_keep_out_others(self) -> None:
        rate = EnrolmentRate(Limits(wrong_tokens_per_hour=2))
        found = [code_at(rate, ADDRESS, self.WRONG, aggregator="north") for _ in range(50)]
        assert found == ["token.unknown"] * 2 + ["enrolment.guesses"] * 48
        assert code_at(rate, OTHER, aggregator="north") == ""
        assert code_at(rate, ADDRESS, aggregator="south") == "", "the same private address at another site"
        assert code_at(rate, ADDRESS) == "", "and at the server itself"

    def test_an_aggregator_that_names_ever_new_addresses_is_bounded_as_a_whole(self) -> None:
        rate = EnrolmentRate(Limits(wrong_tokens_per_hour=2))
        codes = [code_at(rate, f"10.0.0.{number}", self.WRONG, aggregator="north") for number in range(100)]
        assert codes.count("token.unknown") == 2 * SOURCES
        assert code_at(rate, OTHER, aggregator="south") == ""
        assert code_at(rate, OTHER) == ""

    def test_what_it_names_pushes_no_other_count_out(self) -> None:
        rate = EnrolmentRate(Limits(wrong_tokens_per_hour=1, enrolments_per_minute=10**6))
        assert [code_at(rate, OTHER, self.WRONG, aggregator=at) for at in ("", "south")] == ["token.unknown"] * 2
        for number in range(MAX_SOURCES + 1):
            code_at(rate, f"made up {number}", aggregator="north")
        assert [code_at(rate, OTHER, aggregator=at) for at in ("", "south")] == ["enrolment.guesses"] * 2


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
    """An aggregator's participants renew from the same address from which a caller guesses tokens."""
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


class TestAtARealServer:
    async def test_guesses_at_an_aggregator_keep_no_other_newcomer_out(self, world: World) -> None:
        gateway, name = await self._aggregator(world)
        bad = await world.token()
        for _ in range(2):
            guess = self._enrol(gateway, bad.token_id, "guess", "192.0.2.1")
            assert (await refused_code(guess)) == ("UNAUTHENTICATED", "token.unknown")
        shut_out = await refusal(self._enrol(gateway, bad.token_id, bad.secret, "192.0.2.1"))
        assert shut_out.detail is not None
        assert shut_out.detail.code == "enrolment.guesses"
        assert f"192.0.2.1 at aggregator {name}" in shut_out.detail.message
        good = await world.token()
        assert (await self._enrol(gateway, good.token_id, good.secret, "192.0.2.2")).participant
        assert (await world.enrol_with(await world.token(), Key())).participant, "from the aggregator's own address"

    async def test_only_gateways_say_where_a_newcomer_calls_from(self, world: World) -> None:
        participant, token = await world.participant(), await world.token()
        stub = gateway_pb2_grpc.GatewayServiceStub(participant.channel)
        found = await refused_code(self._enrol(stub, token.token_id, token.secret, "192.0.2.1"))
        assert found[0] == "PERMISSION_DENIED"

    async def _aggregator(self, world: World) -> tuple[Any, str]:
        kind, key = enrolment_pb2.PARTICIPANT_KIND_AGGREGATOR, Key()
        answer = await world.enrol_with(await world.token(kind=kind, hosts=["127.0.0.1"]), key, aggregator=True)
        channel = await world.channel(key.pem, answer.certificate_pem)
        return gateway_pb2_grpc.GatewayServiceStub(channel), answer.participant

    async def _enrol(self, stub: Any, token_id: str, secret: str, source: str) -> enrolment_pb2.EnrolResponse:
        request = enrolment_pb2.EnrolRequest(token_id=token_id, secret=secret, csr_pem=Key().csr)
        passed = gateway_pb2.GatewayServiceEnrolRequest(request=request, source=source)
        answer: enrolment_pb2.EnrolResponse = (await stub.Enrol(passed, timeout=WAIT_S)).response
        return answer
