import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from atoll.server.access import certificates as module
from atoll.server.access.certificates import CertificateBook
from atoll.server.errors import UnauthenticatedError
from atoll.server.identity import (
    Authority,
    CertificateRequest,
    NameFormatError,
    Peer,
    PeerError,
    Role,
    new_server_id,
)
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.stores import participants
from tests.patience import WAIT_S
from tests.server.access.certificate_rig import Rig
from tests.server.rpc.world import Key


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


async def test_believed_participants_get_a_row_once(rig: Rig) -> None:
    await rig.book.adopt_insecure("paaaaaaaaaaaa")
    await rig.book.adopt_insecure("paaaaaaaaaaaa")


class TestRestored:
    """A database restored from a backup does not know the certificates renewed since."""

    def restored(self, rig: Rig, after_s: float) -> CertificateBook:
        at = rig.clock() + after_s
        return CertificateBook(rig.authority, rig.store.writer, rig.store.reader, rig.clock, restored_at=at)

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
        _, old = await rig.issuer.enrol(token.token_id, token.secret, Key().csr)
        await rig.book.identify(old)
        rig.clock.now += 60.0
        request = CertificateRequest.parse(Key().csr)
        name = Peer.from_pem(old).name
        renewed = rig.authority.issue_participant(request, name, now=rig.clock(), lifetime_s=3600.0).pem
        book = self.restored(rig, 10.0)
        await rig.issuer_of(book).renew(old, Key().csr)  # the backup cannot know better
        await book.identify(renewed)
        rig.clock.now += 1.0
        await rig.issuer_of(book).renew(renewed, Key().csr)

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

    async def test_a_certificate_of_another_authority_is_refused_and_does_not_lock_its_participant_out(
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
        await rig.issuer_of(book).renew(pem, Key().csr)
