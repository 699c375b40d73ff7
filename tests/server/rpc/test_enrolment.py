import asyncio
import json
import time
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from atoll.server.identity import Authority, CertificateRequest
from atoll.wire.renewal import renewal_proof
from atoll.wire.v1 import control_pb2, enrolment_pb2, enrolment_pb2_grpc
from tests.patience import WAIT_S
from tests.server.rpc.world import Caller, Key, Participant, World, refusal, refused_code, refused_detail


class TestEnrol:
    async def test_a_token_admits_a_key(self, world: World) -> None:
        key = Key()
        answer = await world.enrol_with(await world.token("acme", kind=enrolment_pb2.PARTICIPANT_KIND_SILO), key)
        assert answer.organisation == "acme"
        assert answer.kind == enrolment_pb2.PARTICIPANT_KIND_SILO
        assert answer.server_address == world.addresses.main
        certificate = x509.load_pem_x509_certificate(answer.certificate_pem)
        assert certificate.public_key() == key.key.public_key()
        listed = await world.operator.control.ListParticipants(control_pb2.ListParticipantsRequest(), timeout=WAIT_S)
        assert [row.participant for row in listed.participants] == [answer.participant]

    async def test_the_same_key_may_ask_again_and_is_the_same_participant(self, world: World) -> None:
        token, key = await world.token(), Key()
        first, again = await world.enrol_with(token, key), await world.enrol_with(token, key)
        assert again.participant == first.participant

    async def test_of_two_keys_that_race_for_a_token_one_wins(self, world: World) -> None:
        token = await world.token()
        outcomes = await asyncio.gather(*(world.enrol_with(token, Key()) for _ in range(4)), return_exceptions=True)
        admitted = [outcome for outcome in outcomes if isinstance(outcome, enrolment_pb2.EnrolResponse)]
        assert len(admitted) == 1

    async def test_another_key_is_told_that_the_token_is_used(self, world: World) -> None:
        token = await world.token()
        await world.enrol_with(token, Key())
        assert await refused_code(world.enrol_with(token, Key())) == ("UNAUTHENTICATED", "token.used")

    async def test_an_expired_token_does_not_admit(self, world: World) -> None:
        token = await world.token(lifetime_s=1e-6)
        assert await refused_code(world.enrol_with(token, Key())) == ("UNAUTHENTICATED", "token.expired")

    @pytest.mark.parametrize("changes", [{"token_id": "taaaaaaaaaaaa"}, {"secret": "wrong"}, {"secret": ""}])
    async def test_unknown_tokens_and_wrong_secrets_are_not_told_apart(
        self, world: World, changes: dict[str, str]
    ) -> None:
        call = world.enrol_with(await world.token(), Key(), **changes)
        assert await refused_code(call) == ("UNAUTHENTICATED", "token.unknown")

    @pytest.mark.parametrize("aggregator", [False, True])
    async def test_a_token_for_the_other_kind_is_refused_and_stays_unspent(
        self, world: World, aggregator: bool
    ) -> None:
        kind, hosts = enrolment_pb2.PARTICIPANT_KIND_AGGREGATOR, ["agg.example.org"]
        token = await (world.token(kind=kind, hosts=hosts) if not aggregator else world.token())
        detail = await refused_detail(world.enrol_with(token, Key(), aggregator=aggregator))
        assert (detail.code, token.token_id in detail.message) == ("token.scope", True)
        assert "atoll" in detail.remedy
        listed = await world.operator.control.ListParticipants(control_pb2.ListParticipantsRequest(), timeout=WAIT_S)
        assert list(listed.participants) == []
        answer = await world.enrol_with(token, Key(), aggregator=not aggregator)
        assert (answer.kind == kind) is not aggregator

    @pytest.mark.parametrize("csr", [b"", b"rubbish", b"x" * 20_000])
    async def test_a_bad_request_leaves_the_token_unspent(self, world: World, csr: bytes) -> None:
        token = await world.token()
        code = await refused_code(world.enrol_with(token, Key(), csr_pem=csr))
        assert code == ("INVALID_ARGUMENT", "identity.request")
        await world.enrol_with(token, Key())

    async def test_a_revoked_participant_cannot_come_back_with_its_token(self, world: World) -> None:
        token, key = await world.token(), Key()
        answer = await world.enrol_with(token, key)
        await world.operator.control.RevokeParticipant(
            control_pb2.RevokeParticipantRequest(participant=answer.participant), timeout=WAIT_S
        )
        assert await refused_code(world.enrol_with(token, key)) == ("PERMISSION_DENIED", "participant.revoked")


class TestRenewal:
    async def test_a_new_certificate_for_a_new_key(self, world: World, alice: Participant) -> None:
        fresh = Key()
        answer = await alice.renewal.Renew(enrolment_pb2.RenewRequest(csr_pem=fresh.csr), timeout=WAIT_S)
        renewed = Participant(
            await world.channel(fresh.pem, answer.certificate_pem), alice.name, fresh, answer.certificate_pem
        )
        async with renewed.check_in():
            pass

    async def test_a_revoked_participant_cannot_renew(self, world: World, alice: Participant) -> None:
        await world.operator.control.RevokeParticipant(
            control_pb2.RevokeParticipantRequest(participant=alice.name, reason="lost"), timeout=WAIT_S
        )
        call = alice.renewal.Renew(enrolment_pb2.RenewRequest(csr_pem=Key().csr), timeout=WAIT_S)
        assert await refused_code(call) == ("UNAUTHENTICATED", "certificate.revoked")

    async def test_one_that_is_older_than_a_used_one(self, world: World, alice: Participant) -> None:
        fresh = Key()
        answer = await alice.renewal.Renew(enrolment_pb2.RenewRequest(csr_pem=fresh.csr), timeout=WAIT_S)
        again = await alice.renewal.Renew(enrolment_pb2.RenewRequest(csr_pem=Key().csr), timeout=WAIT_S)
        assert again.certificate_pem != answer.certificate_pem
        newer = Participant(
            await world.channel(fresh.pem, answer.certificate_pem), alice.name, fresh, answer.certificate_pem
        )
        async with newer.check_in():
            pass
        call = alice.renewal.Renew(enrolment_pb2.RenewRequest(csr_pem=Key().csr), timeout=WAIT_S)
        assert await refused_code(call) == ("UNAUTHENTICATED", "certificate.superseded")
        async with alice.check_in():  # in force until its end
            pass

    async def test_a_bad_request_is_refused(self, alice: Participant) -> None:
        call = alice.renewal.Renew(enrolment_pb2.RenewRequest(csr_pem=b"rubbish"), timeout=WAIT_S)
        assert await refused_code(call) == ("INVALID_ARGUMENT", "identity.request")


class TestRenewExpired:
    async def test_over_the_enrolment_port_with_the_old_key(self, world: World, alice: Participant) -> None:
        """The main port's TLS does not accept an expired certificate."""
        authority = Authority.open(world.config.data / "ca", now=time.time())
        request = CertificateRequest.parse(alice.key.csr)
        expired = authority.issue_participant(request, alice.name, now=time.time() - 7200.0, lifetime_s=3600.0).pem
        away = Participant(await world.channel(alice.key.pem, expired), alice.name, alice.key, expired)
        call = away.renewal.Renew(enrolment_pb2.RenewRequest(csr_pem=Key().csr), timeout=WAIT_S)
        assert (await refusal(call)).status is grpc.StatusCode.UNAVAILABLE
        fresh = Key()
        csr = fresh.csr
        signature = alice.key.key.sign(renewal_proof(csr), ec.ECDSA(hashes.SHA256()))
        stub = enrolment_pb2_grpc.EnrolmentServiceStub(await world.channel(address=world.addresses.enrolment))
        asked = enrolment_pb2.RenewExpiredRequest(certificate_pem=expired, csr_pem=csr, signature=signature)
        answer = await stub.RenewExpired(asked, timeout=WAIT_S)
        back = Participant(
            await world.channel(fresh.pem, answer.certificate_pem), alice.name, fresh, answer.certificate_pem
        )
        async with back.check_in():
            pass
        forged = enrolment_pb2.RenewExpiredRequest(certificate_pem=expired, csr_pem=Key().csr, signature=signature)
        assert await refused_code(stub.RenewExpired(forged, timeout=WAIT_S)) == ("UNAUTHENTICATED", "identity.peer")


class TestTransport:
    async def test_the_main_port_refuses_callers_without_a_certificate(self, world: World) -> None:
        stranger = Caller(await world.channel())
        found = await refusal(stranger.control.GetServerInfo(control_pb2.GetServerInfoRequest(), timeout=WAIT_S))
        assert found.status is grpc.StatusCode.UNAVAILABLE

    async def test_a_certificate_of_another_authority_is_refused(self, world: World, tmp_path: Path) -> None:
        async with World(tmp_path / "other") as other:
            assert other.addresses.operator is not None
            theirs = json.loads(other.addresses.operator.read_text())
            stranger = Caller(await world.channel(theirs["key"].encode(), theirs["certificate"].encode()))
            found = await refusal(stranger.control.GetServerInfo(control_pb2.GetServerInfoRequest(), timeout=WAIT_S))
            assert found.status is grpc.StatusCode.UNAVAILABLE

    async def test_a_certificate_that_is_not_on_record_is_refused(self, world: World) -> None:
        """This authority issued the certificate, but it is unknown, for example after the database was replaced."""
        ghost = Authority.open(world.config.data / "ca", now=time.time()).issue_operator("ghost", now=time.time())
        caller = Caller(await world.channel(ghost.key_pem, ghost.issued.pem))
        call = caller.control.GetServerInfo(control_pb2.GetServerInfoRequest(), timeout=WAIT_S)
        assert await refused_code(call) == ("UNAUTHENTICATED", "certificate.unknown")
