import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from sqlalchemy import Connection, delete

from atoll.server.access.certificates import CertificateBook
from atoll.server.access.issuing import CertificateIssuer
from atoll.server.config.limits import DEFAULT_LIMITS
from atoll.server.errors import ForbiddenError, LimitExceededError, UnauthenticatedError
from atoll.server.identity import (
    Authority,
    CertificateRequest,
    CertificateRequestError,
    Peer,
    PeerError,
    SupersededError,
    TokenExpiredError,
    TokenUnknownError,
    TokenUsedError,
)
from atoll.server.stores import RecordMissingError, certificates, participants
from atoll.server.stores.schema import certificates as certificate_rows
from tests.patience import WAIT_S
from tests.server.access.certificate_rig import Rig
from tests.server.rpc.world import Key

SHA256 = ec.ECDSA(hashes.SHA256())
MOST = DEFAULT_LIMITS.certificates_per_lifetime


def forget(fingerprint: str, connection: Connection) -> None:
    """Remove a certificate from the database."""
    connection.execute(delete(certificate_rows).where(certificate_rows.c.fingerprint == fingerprint))


class TestEnrol:
    async def test_a_token_admits_one_key(self, rig: Rig) -> None:
        token, key = await rig.token(), Key()
        first, _ = await rig.issuer.enrol(token.token_id, token.secret, key.csr)
        again, pem = await rig.issuer.enrol(token.token_id, token.secret, key.csr)
        assert again.id == first.id
        assert (await rig.book.identify(pem)).name == first.id
        with pytest.raises(TokenUsedError):
            await rig.issuer.enrol(token.token_id, token.secret, Key().csr)

    async def test_a_token_that_does_not_admit_costs_no_write(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        token, old = await rig.token(), await rig.token(lifetime_s=1.0)
        rig.clock.now += 2.0
        monkeypatch.setattr(rig.store.writer, "run", None)
        with pytest.raises(TokenUnknownError):
            await rig.issuer.enrol(token.token_id, "wrong", Key().csr)
        with pytest.raises(TokenUnknownError):
            await rig.issuer.enrol("taaaaaaaaaaaa", token.secret, Key().csr)
        with pytest.raises(TokenExpiredError):
            await rig.issuer.enrol(old.token_id, old.secret, Key().csr)
        with pytest.raises(CertificateRequestError):
            await rig.issuer.enrol(token.token_id, token.secret, b"rubbish")

    async def test_one_key_that_asks_twice_at_the_same_moment_is_one_participant(self, rig: Rig) -> None:
        token, key = await rig.token(), Key()
        both = await asyncio.gather(*(rig.issuer.enrol(token.token_id, token.secret, key.csr) for _ in range(4)))
        assert len({participant.id for participant, _ in both}) == 1
        for participant, pem in both:
            assert (await rig.book.identify(pem)).name == participant.id

    async def test_once_its_certificate_has_been_used_a_token_is_spent_for_its_key_too(self, rig: Rig) -> None:
        """From then on, a key that was stolen together with its token is useless."""
        token, key = await rig.token(lifetime_s=30 * 86_400.0), Key()
        participant, pem = await rig.issuer.enrol(token.token_id, token.secret, key.csr)
        await rig.book.identify(pem)
        with pytest.raises(TokenUsedError, match="so has the certificate"):
            await rig.issuer.enrol(token.token_id, token.secret, key.csr)
        checked_in = partial(participants.check_in, participant=participant.id, at=rig.clock(), examples=1, labels=())
        await rig.store.writer.run(checked_in)
        rig.clock.now += 20 * 86_400.0
        await rig.store.writer.run(partial(certificates.prune, expired_before=rig.clock(), most=10))
        with pytest.raises(TokenUsedError, match="so has the certificate"):
            await rig.issuer.enrol(token.token_id, token.secret, key.csr)

    async def test_it_cannot_be_repeated_without_end(self, rig: Rig) -> None:
        token, key = await rig.token(), Key()
        for _ in range(MOST):
            await rig.issuer.enrol(token.token_id, token.secret, key.csr)
        with pytest.raises(LimitExceededError) as refused:
            await rig.issuer.enrol(token.token_id, token.secret, key.csr)
        assert refused.value.detail.code == "certificate.rate"

    async def test_a_revoked_participant_gets_nothing_more(self, rig: Rig) -> None:
        token, key = await rig.token(), Key()
        participant, pem = await rig.issuer.enrol(token.token_id, token.secret, key.csr)
        await rig.book.revoke(participant.id, "lost")
        with pytest.raises(ForbiddenError, match="was revoked"):
            await rig.issuer.enrol(token.token_id, token.secret, key.csr)
        with pytest.raises(ForbiddenError, match="was revoked"):
            await rig.issuer.renew(pem, Key().csr)


class TestRenew:
    async def test_a_newer_certificate_lasts_longer_and_the_older_its_time(self, rig: Rig) -> None:
        participant, old = await rig.enrol()
        rig.clock.now += 3000.0
        fresh = await rig.issuer.renew(old, Key().csr)
        for pem in (fresh, old):
            assert (await rig.book.identify(pem)).name == participant
        assert rig.book.remaining_s(participant) == pytest.approx(3600.0, abs=2.0)

    async def test_so_many_are_given_within_one_lifetime(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        """Beyond the limit, a renewal only costs a read: nothing is signed or stored."""
        _, pem = await rig.enrol()
        await rig.book.identify(pem)
        for _ in range(MOST - 1):
            rig.clock.now += 60.0
            await rig.issuer.renew(pem, Key().csr)
        with monkeypatch.context() as patch:
            patch.setattr(rig.store.writer, "run", None)
            patch.setattr(rig.authority, "issue_participant", None)
            with pytest.raises(LimitExceededError) as refused:
                await rig.issuer.renew(pem, Key().csr)
        wait_s = refused.value.detail.retry_after_s or 0.0
        assert wait_s == pytest.approx(3600.0 - 60.0 * (MOST - 1))
        rig.clock.now += wait_s + 1.0
        await rig.issuer.renew(pem, Key().csr)

    async def test_side_by_side_they_do_not_pass_the_limit_together(self, rig: Rig) -> None:
        _, pem = await rig.enrol()
        renewals = (rig.issuer.renew(pem, Key().csr) for _ in range(2 * MOST))
        outcomes = await asyncio.gather(*renewals, return_exceptions=True)
        assert sum(isinstance(one, bytes) for one in outcomes) == MOST - 1

    async def test_keys_are_signed_neither_in_the_writers_thread_nor_in_the_loops(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        threads: set[int] = set()
        issue = rig.authority.issue_participant

        def watched(*args: Any, **kwargs: Any) -> Any:
            threads.add(threading.get_ident())
            return issue(*args, **kwargs)

        monkeypatch.setattr(rig.authority, "issue_participant", watched)
        _, pem = await rig.enrol()
        await rig.issuer.renew(pem, Key().csr)
        writers = await rig.store.writer.run(lambda _: threading.get_ident())
        assert threads
        assert not threads & {writers, threading.get_ident()}

    async def test_strangers(self, rig: Rig) -> None:
        request = CertificateRequest.parse(Key().csr)
        ghost = rig.authority.issue_participant(request, "pzzzzzzzzzzzz", now=rig.clock())
        with pytest.raises(UnauthenticatedError, match="not issued by this server"):
            await rig.issuer.renew(ghost.pem, Key().csr)
        with pytest.raises(RecordMissingError):
            await rig.book.revoke("pzzzzzzzzzzzz", "x")


class TestSuperseded:
    """A certificate is renewed until a newer one of its participant has been used."""

    async def test_a_client_that_lost_the_answer_asks_again_with_the_old_one(self, rig: Rig) -> None:
        participant, old = await rig.enrol()
        await rig.book.identify(old)
        await rig.issuer.renew(old, Key().csr)  # this answer is lost
        fresh = await rig.issuer.renew(old, Key().csr)
        assert (await rig.book.identify(fresh)).name == participant

    async def test_once_a_newer_one_was_used_it_is_renewed_no_more(
        self, rig: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        participant, old = await rig.enrol()
        await rig.book.identify(old)
        lost = await rig.issuer.renew(old, Key().csr)
        fresh = await rig.issuer.renew(old, Key().csr)
        await rig.book.identify(fresh)
        for pem in (old, lost):
            with pytest.raises(UnauthenticatedError, match="has used a newer certificate") as refused:
                await rig.issuer.renew(pem, Key().csr)
            assert refused.value.detail.code == "certificate.superseded"
        assert f"{participant}" in caplog.text
        assert "has used a newer certificate" in caplog.text
        await rig.book.identify(old)  # in force until its end: a connection may still be open on it
        await rig.issuer.renew(fresh, Key().csr)

    async def test_also_while_a_renewal_is_being_signed(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        _, old = await rig.enrol()
        newer = await rig.issuer.renew(old, Key().csr)
        issue, began, go = rig.authority.issue_participant, threading.Event(), threading.Event()

        def slow(*args: Any, **kwargs: Any) -> Any:
            began.set()
            assert go.wait(WAIT_S)
            return issue(*args, **kwargs)

        monkeypatch.setattr(rig.authority, "issue_participant", slow)
        renewing = asyncio.create_task(rig.issuer.renew(old, Key().csr))
        assert await asyncio.to_thread(began.wait, WAIT_S)
        await rig.book.identify(newer)
        go.set()
        with pytest.raises(UnauthenticatedError, match="has used a newer certificate"):
            await renewing

    async def test_a_clock_that_is_set_back_does_not_make_the_newer_one_the_older(self, rig: Rig) -> None:
        _, old = await rig.enrol()
        await rig.book.identify(old)
        rig.clock.now -= 1800.0
        fresh = await rig.issuer.renew(old, Key().csr)
        await rig.book.identify(fresh)
        await rig.issuer.renew(fresh, Key().csr)
        with pytest.raises(UnauthenticatedError, match="has used a newer certificate"):
            await rig.issuer.renew(old, Key().csr)

    async def test_it_is_known_after_a_restart(self, rig: Rig) -> None:
        _, old = await rig.enrol()
        fresh = await rig.issuer.renew(old, Key().csr)
        await rig.book.identify(fresh)
        again = CertificateBook(rig.authority, rig.store.writer, rig.store.reader, rig.clock)
        with pytest.raises(UnauthenticatedError, match="has used a newer certificate"):
            await rig.issuer_of(again).renew(old, Key().csr)


class TestRenewExpired:
    """A device that was off for more than a certificate's lifetime."""

    @pytest.fixture
    def book(self, rig: Rig) -> CertificateBook:
        return CertificateBook(rig.authority, rig.store.writer, rig.store.reader, rig.clock)

    @pytest.fixture
    def issuer(self, rig: Rig, book: CertificateBook) -> CertificateIssuer:
        return rig.issuer_of(book, grace_s=86_400.0)

    async def enrolled(self, rig: Rig) -> tuple[Key, str, bytes]:
        token, key = await rig.token(), Key()
        participant, pem = await rig.issuer.enrol(token.token_id, token.secret, key.csr)
        return key, participant.id, pem

    def proof(self, key: Key, csr: bytes) -> bytes:
        return key.key.sign(b"atoll renewal 1\n" + csr, SHA256)

    async def test_within_the_grace_period_its_key_is_enough(
        self, rig: Rig, book: CertificateBook, issuer: CertificateIssuer
    ) -> None:
        key, participant, old = await self.enrolled(rig)
        rig.clock.now += 3600.0 + 86_000.0
        with pytest.raises(UnauthenticatedError, match="expired"):
            await book.identify(old)
        csr = Key().csr
        pem = await issuer.renew_expired(old, csr, self.proof(key, csr))
        assert (await book.identify(pem)).name == participant

    async def test_an_answer_that_was_lost_is_asked_for_again(
        self, rig: Rig, book: CertificateBook, issuer: CertificateIssuer
    ) -> None:
        key, participant, old = await self.enrolled(rig)
        rig.clock.now += 3601.0
        lost, csr = Key().csr, Key().csr
        await issuer.renew_expired(old, lost, self.proof(key, lost))
        pem = await issuer.renew_expired(old, csr, self.proof(key, csr))
        assert (await book.identify(pem)).name == participant

    async def test_an_expired_certificate_that_was_renewed_long_ago_is_refused(
        self, rig: Rig, book: CertificateBook, issuer: CertificateIssuer
    ) -> None:
        """Its key may have been stolen; holds even if the certificate is no longer recorded."""
        key, _, old = await self.enrolled(rig)
        newer = await issuer.renew(old, Key().csr)
        rig.clock.now += 1.0
        await book.identify(newer)
        rig.clock.now += 7200.0
        csr = Key().csr
        with pytest.raises(SupersededError):
            await issuer.renew_expired(old, csr, self.proof(key, csr))
        await rig.store.writer.run(partial(forget, Peer.from_pem(old).fingerprint))
        with pytest.raises(SupersededError):
            await issuer.renew_expired(old, csr, self.proof(key, csr))

    async def test_after_it_a_new_token_is_needed(self, rig: Rig, issuer: CertificateIssuer) -> None:
        key, _, old = await self.enrolled(rig)
        rig.clock.now += 3600.0 + 86_400.0 + 2.0
        csr = Key().csr
        with pytest.raises(UnauthenticatedError, match="expired longer than 86400 s ago") as refused:
            await issuer.renew_expired(old, csr, self.proof(key, csr))
        assert refused.value.detail.code == "certificate.expired"

    async def test_the_certificate_alone_is_not_enough(self, rig: Rig, issuer: CertificateIssuer) -> None:
        """A certificate is not secret: without its key it is useless, and a proof is valid for one request."""
        key, _, old = await self.enrolled(rig)
        csr = Key().csr
        for signature in (b"", self.proof(Key(), csr), self.proof(key, Key().csr), key.key.sign(csr, SHA256)):
            with pytest.raises(PeerError, match="not proved"):
                await issuer.renew_expired(old, csr, signature)

    async def test_revoked_ones_operators_and_strangers_get_nothing(
        self, rig: Rig, issuer: CertificateIssuer, tmp_path: Path
    ) -> None:
        key, participant, old = await self.enrolled(rig)
        await rig.book.revoke(participant, "lost")
        csr = Key().csr
        with pytest.raises(ForbiddenError, match="was revoked"):
            await issuer.renew_expired(old, csr, self.proof(key, csr))
        request = CertificateRequest.parse(key.csr)
        operator = rig.authority.certify_operator(request, "dora", now=rig.clock()).pem
        elsewhere = Authority.open(tmp_path / "elsewhere", now=rig.clock())
        stranger = elsewhere.issue_participant(request, participant, now=rig.clock()).pem
        for pem in (operator, stranger, b"rubbish", rig.authority.certificate_pem):
            with pytest.raises(PeerError):
                await issuer.renew_expired(pem, csr, self.proof(key, csr))
