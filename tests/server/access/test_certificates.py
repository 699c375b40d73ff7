import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from sqlalchemy import Connection, delete

from atoll.server.access import certificates as module
from atoll.server.access.certificates import CertificateBook
from atoll.server.config.limits import DEFAULT_LIMITS
from atoll.server.errors import ForbiddenError, LimitExceededError, UnauthenticatedError
from atoll.server.identity import (
    Authority,
    CertificateRequest,
    CertificateRequestError,
    NameFormatError,
    ParticipantKind,
    Peer,
    PeerError,
    RevokedError,
    Role,
    SupersededError,
    TokenExpiredError,
    TokenUnknownError,
    TokenUsedError,
    new_server_id,
)
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.stores import RecordMissingError, Store, certificates, participants, tokens
from atoll.server.stores.schema import certificates as certificate_rows
from atoll.wire.join_token import JoinToken
from tests.patience import WAIT_S
from tests.server.rpc.world import Key

SHA256 = ec.ECDSA(hashes.SHA256())
MOST = DEFAULT_LIMITS.certificates_per_lifetime


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


class Rig:
    """A certificate book over a real store, with a clock that the test sets."""

    def __init__(self, store: Store, authority: Authority, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.authority = authority
        self.book = CertificateBook(authority, store.writer, store.reader, clock, lifetime_s=3600.0)

    async def token(self, lifetime_s: float = 60.0) -> JoinToken:
        (made,) = await self.book.create_tokens(
            "acme", ParticipantKind.EDGE, lifetime_s=lifetime_s, count=1, operator="admin", address="127.0.0.1:1"
        )
        return made

    async def enrol(self) -> tuple[str, bytes]:
        token = await self.token()
        participant, pem = await self.book.enrol(token.token_id, token.secret, Key().csr)
        return participant.id, pem


def forget(fingerprint: str, connection: Connection) -> None:
    """Remove a certificate from the database."""
    connection.execute(delete(certificate_rows).where(certificate_rows.c.fingerprint == fingerprint))


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    store, clock = Store.open(tmp_path / "data"), Clock()
    yield Rig(store, Authority.open(tmp_path / "ca", now=clock()), clock)
    store.close()


class TestIdentify:
    async def test_the_holder_of_a_certificate_is_known(self, rig: Rig) -> None:
        participant, pem = await rig.enrol()
        caller = await rig.book.identify(pem)
        assert (caller.role, caller.name) == (Role.PARTICIPANT, participant)
        assert rig.book.remaining_s(participant) == pytest.approx(3600.0, abs=2.0)
        assert rig.book.remaining_s("pzzzzzzzzzzzz") < 0.0

    async def test_another_servers_is_known_by_its_signature_for_as_long_as_it_lasts(
        self, rig: Rig, tmp_path: Path
    ) -> None:
        name, now = new_server_id(), rig.clock()
        pem = rig.authority.identify_server(name, now=now, lifetime_s=60.0).issued.pem
        assert await rig.book.identify(pem) == Caller(Role.SERVER, name)
        foreign = Authority.open(tmp_path / "other", now=now).identify_server(name, now=now, lifetime_s=60.0)
        with pytest.raises(PeerError, match="not of this federation"):
            await rig.book.identify(foreign.issued.pem)
        rig.clock.now += 61.0
        with pytest.raises(UnauthenticatedError, match="expired"):
            await rig.book.identify(pem)

    def test_no_participant_or_operator_has_a_servers_name(self, rig: Rig) -> None:
        request = CertificateRequest.parse(Key().csr)
        for issue in (rig.authority.issue_participant, rig.authority.certify_operator):
            pem = None
            with contextlib.suppress(NameFormatError):
                pem = issue(request, new_server_id(), now=rig.clock()).pem
            assert pem is None or Peer.from_pem(pem).role is not Role.SERVER

    async def test_it_is_read_once(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        _, pem = await rig.enrol()
        await rig.book.identify(pem)
        monkeypatch.setattr(rig.store.reader, "run", None)
        await rig.book.identify(pem)

    async def test_one_that_is_not_on_record(self, rig: Rig) -> None:
        ghost = rig.authority.issue_operator("ghost", now=rig.clock())
        with pytest.raises(UnauthenticatedError, match="not issued by this server"):
            await rig.book.identify(ghost.issued.pem)
        with pytest.raises(UnauthenticatedError, match="cannot be read"):
            await rig.book.identify(b"rubbish")

    async def test_an_expired_one(self, rig: Rig) -> None:
        participant, pem = await rig.enrol()
        await rig.book.identify(pem)
        rig.clock.now += 3601.0
        with pytest.raises(UnauthenticatedError, match=f"{participant} expired"):
            await rig.book.identify(pem)

    async def test_a_revoked_one_however_often_it_was_seen(self, rig: Rig) -> None:
        participant, pem = await rig.enrol()
        await rig.book.identify(pem)
        await rig.book.revoke(participant, "lost")
        with pytest.raises(UnauthenticatedError, match="was revoked: lost"):
            await rig.book.identify(pem)

    async def test_a_revocation_whose_caller_is_cancelled_holds(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The revocation is durable once the writer has begun, so the cache must be cleared too."""
        participant, pem = await rig.enrol()
        await rig.book.identify(pem)
        began, go = threading.Event(), threading.Event()
        revoke = participants.revoke

        def slow(*args: Any, **kwargs: Any) -> Any:
            began.set()
            assert go.wait(WAIT_S)
            return revoke(*args, **kwargs)

        monkeypatch.setattr(participants, "revoke", slow)
        seen = asyncio.Event()
        rig.book.listen(lambda _caller, _error: seen.set())
        revoking = asyncio.create_task(rig.book.revoke(participant, "lost"))
        assert await asyncio.to_thread(began.wait, WAIT_S)
        revoking.cancel()
        await asyncio.gather(revoking, return_exceptions=True)
        go.set()
        await asyncio.wait_for(seen.wait(), WAIT_S)
        with pytest.raises(UnauthenticatedError, match="was revoked: lost"):
            await rig.book.identify(pem)

    async def test_a_read_that_is_under_way_does_not_outlive_a_revocation(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A row that was read before the revocation must not be cached afterwards."""
        participant, pem = await rig.enrol()
        run, began, go = rig.store.reader.run, asyncio.Event(), asyncio.Event()

        async def slow(*args: Any) -> Any:
            found = await run(*args)
            began.set()
            await go.wait()
            return found

        with monkeypatch.context() as patch:
            patch.setattr(rig.store.reader, "run", slow)
            looking = asyncio.create_task(rig.book.identify(pem))
            await asyncio.wait_for(began.wait(), WAIT_S)
            await rig.book.revoke(participant, "lost")
            go.set()
            with pytest.raises(UnauthenticatedError, match="revoked"):
                await asyncio.wait_for(looking, WAIT_S)
        with pytest.raises(UnauthenticatedError, match="revoked"):
            await rig.book.identify(pem)

    async def test_what_is_remembered_is_bounded(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_CACHED", 2)
        for _ in range(4):
            await rig.book.identify((await rig.enrol())[1])
        assert (len(rig.book._known), len(rig.book._newest)) == (2, 2)


class TestEnrol:
    async def test_a_token_admits_one_key(self, rig: Rig) -> None:
        token, key = await rig.token(), Key()
        first, _ = await rig.book.enrol(token.token_id, token.secret, key.csr)
        again, pem = await rig.book.enrol(token.token_id, token.secret, key.csr)
        assert again.id == first.id
        assert (await rig.book.identify(pem)).name == first.id
        with pytest.raises(TokenUsedError):
            await rig.book.enrol(token.token_id, token.secret, Key().csr)

    async def test_a_token_that_does_not_admit_costs_no_write(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        token, old = await rig.token(), await rig.token(lifetime_s=1.0)
        rig.clock.now += 2.0
        monkeypatch.setattr(rig.store.writer, "run", None)
        with pytest.raises(TokenUnknownError):
            await rig.book.enrol(token.token_id, "wrong", Key().csr)
        with pytest.raises(TokenUnknownError):
            await rig.book.enrol("taaaaaaaaaaaa", token.secret, Key().csr)
        with pytest.raises(TokenExpiredError):
            await rig.book.enrol(old.token_id, old.secret, Key().csr)
        with pytest.raises(CertificateRequestError):
            await rig.book.enrol(token.token_id, token.secret, b"rubbish")

    async def test_one_key_that_asks_twice_at_the_same_moment_is_one_participant(self, rig: Rig) -> None:
        token, key = await rig.token(), Key()
        both = await asyncio.gather(*(rig.book.enrol(token.token_id, token.secret, key.csr) for _ in range(4)))
        assert len({participant.id for participant, _ in both}) == 1
        for participant, pem in both:
            assert (await rig.book.identify(pem)).name == participant.id

    async def test_once_its_certificate_has_been_used_a_token_is_spent_for_its_key_too(self, rig: Rig) -> None:
        """From then on, a key that was stolen together with its token is useless."""
        token, key = await rig.token(lifetime_s=30 * 86_400.0), Key()
        participant, pem = await rig.book.enrol(token.token_id, token.secret, key.csr)
        await rig.book.identify(pem)
        with pytest.raises(TokenUsedError, match="so has the certificate"):
            await rig.book.enrol(token.token_id, token.secret, key.csr)
        checked_in = partial(participants.check_in, participant=participant.id, at=rig.clock(), examples=1, labels=())
        await rig.store.writer.run(checked_in)
        rig.clock.now += 20 * 86_400.0
        await rig.store.writer.run(partial(certificates.prune, expired_before=rig.clock(), most=10))
        with pytest.raises(TokenUsedError, match="so has the certificate"):
            await rig.book.enrol(token.token_id, token.secret, key.csr)

    async def test_it_cannot_be_repeated_without_end(self, rig: Rig) -> None:
        token, key = await rig.token(), Key()
        for _ in range(MOST):
            await rig.book.enrol(token.token_id, token.secret, key.csr)
        with pytest.raises(LimitExceededError) as refused:
            await rig.book.enrol(token.token_id, token.secret, key.csr)
        assert refused.value.detail.code == "certificate.rate"

    async def test_a_revoked_participant_gets_nothing_more(self, rig: Rig) -> None:
        token, key = await rig.token(), Key()
        participant, pem = await rig.book.enrol(token.token_id, token.secret, key.csr)
        await rig.book.revoke(participant.id, "lost")
        with pytest.raises(ForbiddenError, match="was revoked"):
            await rig.book.enrol(token.token_id, token.secret, key.csr)
        with pytest.raises(ForbiddenError, match="was revoked"):
            await rig.book.renew(pem, Key().csr)


class TestRenew:
    async def test_a_newer_certificate_lasts_longer_and_the_older_its_time(self, rig: Rig) -> None:
        participant, old = await rig.enrol()
        rig.clock.now += 3000.0
        fresh = await rig.book.renew(old, Key().csr)
        for pem in (fresh, old):
            assert (await rig.book.identify(pem)).name == participant
        assert rig.book.remaining_s(participant) == pytest.approx(3600.0, abs=2.0)

    async def test_so_many_are_given_within_one_lifetime(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        """Beyond the limit, a renewal only costs a read: nothing is signed or stored."""
        _, pem = await rig.enrol()
        await rig.book.identify(pem)
        for _ in range(MOST - 1):
            rig.clock.now += 60.0
            await rig.book.renew(pem, Key().csr)
        with monkeypatch.context() as patch:
            patch.setattr(rig.store.writer, "run", None)
            patch.setattr(rig.authority, "issue_participant", None)
            with pytest.raises(LimitExceededError) as refused:
                await rig.book.renew(pem, Key().csr)
        wait_s = refused.value.detail.retry_after_s or 0.0
        assert wait_s == pytest.approx(3600.0 - 60.0 * (MOST - 1))
        rig.clock.now += wait_s + 1.0
        await rig.book.renew(pem, Key().csr)

    async def test_side_by_side_they_do_not_pass_the_limit_together(self, rig: Rig) -> None:
        _, pem = await rig.enrol()
        renewals = (rig.book.renew(pem, Key().csr) for _ in range(2 * MOST))
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
        await rig.book.renew(pem, Key().csr)
        writers = await rig.store.writer.run(lambda _: threading.get_ident())
        assert threads
        assert not threads & {writers, threading.get_ident()}

    async def test_strangers(self, rig: Rig) -> None:
        request = CertificateRequest.parse(Key().csr)
        ghost = rig.authority.issue_participant(request, "pzzzzzzzzzzzz", now=rig.clock())
        with pytest.raises(UnauthenticatedError, match="not issued by this server"):
            await rig.book.renew(ghost.pem, Key().csr)
        with pytest.raises(RecordMissingError):
            await rig.book.revoke("pzzzzzzzzzzzz", "x")


class TestSuperseded:
    """A certificate is renewed until a newer one of its participant has been used."""

    async def test_a_client_that_lost_the_answer_asks_again_with_the_old_one(self, rig: Rig) -> None:
        participant, old = await rig.enrol()
        await rig.book.identify(old)
        await rig.book.renew(old, Key().csr)  # this answer is lost
        fresh = await rig.book.renew(old, Key().csr)
        assert (await rig.book.identify(fresh)).name == participant

    async def test_once_a_newer_one_was_used_it_is_renewed_no_more(
        self, rig: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        participant, old = await rig.enrol()
        await rig.book.identify(old)
        lost = await rig.book.renew(old, Key().csr)
        fresh = await rig.book.renew(old, Key().csr)
        await rig.book.identify(fresh)
        for pem in (old, lost):
            with pytest.raises(UnauthenticatedError, match="has used a newer certificate") as refused:
                await rig.book.renew(pem, Key().csr)
            assert refused.value.detail.code == "certificate.superseded"
        assert f"{participant}" in caplog.text
        assert "has used a newer certificate" in caplog.text
        await rig.book.identify(old)  # in force until its end: a connection may still be open on it
        await rig.book.renew(fresh, Key().csr)

    async def test_also_while_a_renewal_is_being_signed(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        _, old = await rig.enrol()
        newer = await rig.book.renew(old, Key().csr)
        issue, began, go = rig.authority.issue_participant, threading.Event(), threading.Event()

        def slow(*args: Any, **kwargs: Any) -> Any:
            began.set()
            assert go.wait(WAIT_S)
            return issue(*args, **kwargs)

        monkeypatch.setattr(rig.authority, "issue_participant", slow)
        renewing = asyncio.create_task(rig.book.renew(old, Key().csr))
        assert await asyncio.to_thread(began.wait, WAIT_S)
        await rig.book.identify(newer)
        go.set()
        with pytest.raises(UnauthenticatedError, match="has used a newer certificate"):
            await renewing

    async def test_a_clock_that_is_set_back_does_not_make_the_newer_one_the_older(self, rig: Rig) -> None:
        _, old = await rig.enrol()
        await rig.book.identify(old)
        rig.clock.now -= 1800.0
        fresh = await rig.book.renew(old, Key().csr)
        await rig.book.identify(fresh)
        await rig.book.renew(fresh, Key().csr)
        with pytest.raises(UnauthenticatedError, match="has used a newer certificate"):
            await rig.book.renew(old, Key().csr)

    async def test_it_is_known_after_a_restart(self, rig: Rig) -> None:
        _, old = await rig.enrol()
        fresh = await rig.book.renew(old, Key().csr)
        await rig.book.identify(fresh)
        again = CertificateBook(rig.authority, rig.store.writer, rig.store.reader, rig.clock, lifetime_s=3600.0)
        with pytest.raises(UnauthenticatedError, match="has used a newer certificate"):
            await again.renew(old, Key().csr)


class TestRenewExpired:
    """A device that was off for more than a certificate's lifetime."""

    @pytest.fixture
    def book(self, rig: Rig) -> CertificateBook:
        stores = rig.store.writer, rig.store.reader
        return CertificateBook(rig.authority, *stores, rig.clock, lifetime_s=3600.0, grace_s=86_400.0)

    async def enrolled(self, rig: Rig) -> tuple[Key, str, bytes]:
        token, key = await rig.token(), Key()
        participant, pem = await rig.book.enrol(token.token_id, token.secret, key.csr)
        return key, participant.id, pem

    def proof(self, key: Key, csr: bytes) -> bytes:
        return key.key.sign(b"atoll renewal 1\n" + csr, SHA256)

    async def test_within_the_grace_period_its_key_is_enough(self, rig: Rig, book: CertificateBook) -> None:
        key, participant, old = await self.enrolled(rig)
        rig.clock.now += 3600.0 + 86_000.0
        with pytest.raises(UnauthenticatedError, match="expired"):
            await book.identify(old)
        csr = Key().csr
        pem = await book.renew_expired(old, csr, self.proof(key, csr))
        assert (await book.identify(pem)).name == participant

    async def test_an_answer_that_was_lost_is_asked_for_again(self, rig: Rig, book: CertificateBook) -> None:
        key, participant, old = await self.enrolled(rig)
        rig.clock.now += 3601.0
        lost, csr = Key().csr, Key().csr
        await book.renew_expired(old, lost, self.proof(key, lost))
        pem = await book.renew_expired(old, csr, self.proof(key, csr))
        assert (await book.identify(pem)).name == participant

    async def test_one_that_was_renewed_long_ago_brings_nothing(self, rig: Rig, book: CertificateBook) -> None:
        """Its key may have been stolen; holds even if the certificate is no longer recorded."""
        key, _, old = await self.enrolled(rig)
        newer = await book.renew(old, Key().csr)
        rig.clock.now += 1.0
        await book.identify(newer)
        rig.clock.now += 7200.0
        csr = Key().csr
        with pytest.raises(SupersededError):
            await book.renew_expired(old, csr, self.proof(key, csr))
        await rig.store.writer.run(partial(forget, Peer.from_pem(old).fingerprint))
        with pytest.raises(SupersededError):
            await book.renew_expired(old, csr, self.proof(key, csr))

    async def test_after_it_a_new_token_is_needed(self, rig: Rig, book: CertificateBook) -> None:
        key, _, old = await self.enrolled(rig)
        rig.clock.now += 3600.0 + 86_400.0 + 2.0
        csr = Key().csr
        with pytest.raises(UnauthenticatedError, match="expired longer than 86400 s ago") as refused:
            await book.renew_expired(old, csr, self.proof(key, csr))
        assert refused.value.detail.code == "certificate.expired"

    async def test_the_certificate_alone_is_not_enough(self, rig: Rig, book: CertificateBook) -> None:
        """A certificate is not secret: without its key it is useless, and a proof is valid for one request."""
        key, _, old = await self.enrolled(rig)
        csr = Key().csr
        for signature in (b"", self.proof(Key(), csr), self.proof(key, Key().csr), key.key.sign(csr, SHA256)):
            with pytest.raises(PeerError, match="not proved"):
                await book.renew_expired(old, csr, signature)

    async def test_revoked_ones_operators_and_strangers_get_nothing(
        self, rig: Rig, book: CertificateBook, tmp_path: Path
    ) -> None:
        key, participant, old = await self.enrolled(rig)
        await rig.book.revoke(participant, "lost")
        csr = Key().csr
        with pytest.raises(ForbiddenError, match="was revoked"):
            await book.renew_expired(old, csr, self.proof(key, csr))
        request = CertificateRequest.parse(key.csr)
        operator = rig.authority.certify_operator(request, "dora", now=rig.clock()).pem
        elsewhere = Authority.open(tmp_path / "elsewhere", now=rig.clock())
        stranger = elsewhere.issue_participant(request, participant, now=rig.clock()).pem
        for pem in (operator, stranger, b"rubbish", rig.authority.certificate_pem):
            with pytest.raises(PeerError):
                await book.renew_expired(pem, csr, self.proof(key, csr))


class TestOperators:
    async def test_what_one_does_while_it_is_revoked_does_not_last(self, rig: Rig) -> None:
        """Its call was admitted earlier; its tokens would be recorded after its other tokens were voided."""
        dora = rig.authority.issue_operator("dora", now=rig.clock()).issued
        await rig.store.writer.run(certificates.add, dora.peer, issued_at=rig.clock())
        made = rig.book.create_tokens(
            "acme", ParticipantKind.EDGE, lifetime_s=60.0, count=1, operator="dora", address="127.0.0.1:1"
        )
        await rig.book.revoke_operator("dora", "left")
        with pytest.raises(RevokedError, match="dora was revoked: left"):
            await made
        assert await rig.store.reader.run(tokens.listed, project=None) == ()


async def test_believed_participants_get_a_row_once(rig: Rig) -> None:
    await rig.book.adopt_insecure("paaaaaaaaaaaa")
    await rig.book.adopt_insecure("paaaaaaaaaaaa")


class TestRestored:
    """A database restored from a backup does not know the certificates renewed since."""

    def restored(self, rig: Rig, after_s: float) -> CertificateBook:
        at = rig.clock() + after_s
        return CertificateBook(rig.authority, rig.store.writer, rig.store.reader, rig.clock, 3600.0, restored_at=at)

    async def renewed(self, rig: Rig) -> tuple[str, bytes]:
        """A recorded participant, and an unrecorded certificate of it."""
        participant, _ = await rig.enrol()
        request = CertificateRequest.parse(Key().csr)
        return participant, rig.authority.issue_participant(request, participant, now=rig.clock()).pem

    async def test_one_of_a_participant_on_record_is_adopted_for_good(self, rig: Rig) -> None:
        participant, pem = await self.renewed(rig)
        assert (await self.restored(rig, 10.0).identify(pem)).name == participant
        assert (await rig.book.identify(pem)).name == participant

    async def test_it_is_newer_than_what_the_back_up_knows(self, rig: Rig) -> None:
        token = await rig.token()
        _, old = await rig.book.enrol(token.token_id, token.secret, Key().csr)
        await rig.book.identify(old)
        rig.clock.now += 60.0
        request = CertificateRequest.parse(Key().csr)
        name = Peer.from_pem(old).name
        renewed = rig.authority.issue_participant(request, name, now=rig.clock(), lifetime_s=3600.0).pem
        book = self.restored(rig, 10.0)
        await book.renew(old, Key().csr)  # the backup cannot know better
        await book.identify(renewed)
        rig.clock.now += 1.0
        await book.renew(renewed, Key().csr)

    async def test_one_that_was_issued_later_is_not(self, rig: Rig) -> None:
        _, pem = await self.renewed(rig)
        with pytest.raises(UnauthenticatedError, match="not issued by this server"):
            await self.restored(rig, -86_400.0).identify(pem)

    async def test_a_strangers_a_revoked_ones_and_an_operators_are_not(self, rig: Rig) -> None:
        book = self.restored(rig, 10.0)
        participant, pem = await self.renewed(rig)
        await rig.book.revoke(participant, "gone")
        stranger = rig.authority.issue_participant(
            CertificateRequest.parse(Key().csr), "pzzzzzzzzzzzz", now=rig.clock()
        )
        operator = rig.authority.issue_operator("ghost", now=rig.clock())
        for refused in (pem, stranger.pem, operator.issued.pem):
            with pytest.raises(UnauthenticatedError, match="not issued by this server"):
                await book.identify(refused)

    async def test_one_that_another_authority_signed_is_not_and_locks_nobody_out(
        self, rig: Rig, tmp_path: Path
    ) -> None:
        """An aggregator may pass on any bytes as a participant's certificate, which no TLS handshake has verified."""
        book = self.restored(rig, 10.0)
        participant, pem = await rig.enrol()
        await book.identify(pem)
        rig.clock.now += 1.0
        other = Authority.open(tmp_path / "other", now=rig.clock())
        forged = other.issue_participant(CertificateRequest.parse(Key().csr), participant, now=rig.clock()).pem
        with pytest.raises(PeerError, match=f"the certificate of {participant} is not of this federation"):
            await book.identify(forged)
        await book.renew(pem, Key().csr)
