import dataclasses
from typing import Any

import pytest
from sqlalchemy import Connection, event

from atoll.server.identity import Peer, Role
from atoll.server.stores import RecordConflictError, RecordMissingError, Store, certificates, participants
from tests.server.stores.samples import ALICE, BOB, NOW, participant


def _peer(number: int, name: str, role: Role = Role.PARTICIPANT, not_after: float = NOW + 100) -> Peer:
    return Peer(role, name, f"{number:064x}", 0.0, not_after, f"{number:x}")


async def test_a_participant_comes_back_as_it_was(with_run: Store) -> None:
    assert await with_run.reader.run(participants.get, ALICE) == participant(ALICE)
    assert await with_run.reader.run(participants.get, "pother") is None


async def test_they_are_listed_page_by_page(with_run: Store) -> None:
    first = await with_run.reader.run(participants.listed, project=None, limit=1)
    second = await with_run.reader.run(participants.listed, project=None, after=first[0].id, limit=1)
    assert [item.id for item in (*first, *second)] == [ALICE, BOB]
    assert await with_run.reader.run(participants.listed, project=None, after=BOB) == ()


async def test_an_id_is_given_once(with_run: Store) -> None:
    with pytest.raises(RecordConflictError):
        await with_run.writer.run(participants.add, participant(ALICE))


async def test_what_it_says_at_check_in_is_kept(with_run: Store) -> None:
    labels = (("site", "Hôpital 東"), ("quote", "\"'\\\x00"))
    await with_run.writer.run(participants.check_in, ALICE, at=NOW + 1, examples=2**62, labels=labels)
    found = await with_run.reader.run(participants.get, ALICE)
    assert found == dataclasses.replace(participant(ALICE), last_seen_at=NOW + 1, examples=2**62, labels=labels)
    with pytest.raises(RecordMissingError, match="pother"):
        await with_run.writer.run(participants.check_in, "pother", at=NOW, examples=0, labels=())


async def test_a_check_in_needs_no_page_cache_of_its_own(with_run: Store) -> None:
    """SQLite touches 87 KB for one, which the connections of idle participants would keep resident."""

    def opcodes(connection: Connection) -> set[str]:
        made: list[tuple[str, Any]] = []
        event.listen(connection, "before_cursor_execute", lambda *call: made.append((call[2], call[3])))
        participants.check_in(connection, ALICE, at=NOW, examples=1, labels=())
        if connection.dialect.name != "sqlite":
            return set()
        explained = [connection.exec_driver_sql(f"EXPLAIN {text}", values).all() for text, values in tuple(made)]
        return {str(row.opcode) for rows in explained for row in rows}

    assert "OpenEphemeral" not in await with_run.writer.run(opcodes)


async def test_revoking_shuts_out_the_participant_with_every_certificate(with_run: Store) -> None:
    for number, name in enumerate((ALICE, ALICE, BOB)):
        await with_run.writer.run(certificates.add, _peer(number, name), issued_at=NOW)
    await with_run.writer.run(certificates.add, _peer(9, ALICE, Role.OPERATOR), issued_at=NOW)
    revoked = await with_run.writer.run(participants.revoke, ALICE, at=NOW + 1, reason="stolen")
    assert (revoked.revoked_at, revoked.revoked_reason) == (NOW + 1, "stolen")
    again = await with_run.writer.run(participants.revoke, ALICE, at=NOW + 2, reason="other")
    assert again == revoked
    found = [await with_run.reader.run(certificates.get, f"{number:064x}") for number in (0, 1, 2, 9)]
    assert [one and one.revoked_at for one in found] == [NOW + 1, NOW + 1, None, None]
    with pytest.raises(RecordMissingError, match="pother"):
        await with_run.writer.run(participants.revoke, "pother", at=NOW, reason="")


async def test_certificates_come_back_and_expire(store: Store) -> None:
    early, late = _peer(1, "alice", Role.OPERATOR), _peer(2, "alice", Role.OPERATOR, NOW + 1000)
    await store.writer.run(certificates.add, early, issued_at=NOW)
    await store.writer.run(certificates.add, late, issued_at=NOW + 1)
    found = await store.reader.run(certificates.of_subject, Role.OPERATOR, "alice")
    assert [item.fingerprint for item in found] == [late.fingerprint, early.fingerprint]
    assert await store.reader.run(certificates.get, early.fingerprint) == found[1]
    await store.writer.run(certificates.revoke_subject, Role.OPERATOR, "alice", at=NOW + 2, reason="left")
    found = await store.reader.run(certificates.of_subject, Role.OPERATOR, "alice")
    assert [(item.revoked_at, item.revoked_reason) for item in found] == [(NOW + 2, "left")] * 2
    assert await store.writer.run(certificates.prune, expired_before=NOW + 500, most=10) == 1
    assert await store.reader.run(certificates.get, early.fingerprint) is None
