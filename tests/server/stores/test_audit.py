"""The chain of the audit log, in both databases."""

import hashlib
from dataclasses import asdict, replace

import pytest
from sqlalchemy import delete, select, update

from atoll.server.errors import InvalidRequestError
from atoll.server.stores import AuditChain, AuditEntry, AuditFilter, Store, audit
from atoll.server.stores.hash_chain import canonical
from atoll.server.stores.schema import audit as table
from tests.server.stores.samples import NOW


def entry(number: int = 0, **changes: object) -> AuditEntry:
    made = AuditEntry(NOW + number, "dora", "certificate ab", "10.0.0.7", "run.cancel", f"r{number}", "why")
    return replace(made, **changes)  # type: ignore[arg-type]  # the test's own keyword arguments


def appended(store: Store, *entries: AuditEntry) -> list[AuditEntry]:
    return [store.writer.submit(audit.append, one).result() for one in entries]


def listed(store: Store, chosen: AuditFilter | None = None, **page: object) -> list[int]:
    found = store.reader.submit(audit.listed, chosen or AuditFilter(), **page).result()  # type: ignore[arg-type]
    return [one.seq for one in found]


def chain(store: Store) -> AuditChain:
    return store.reader.submit(audit.verified).result()


def test_each_entry_follows_the_one_before(store: Store) -> None:
    first, second = appended(store, entry(0), entry(1, outcome="refused", code="operator.role"))
    assert (first.seq, first.previous, second.seq, second.previous) == (0, "0" * 64, 1, first.digest)
    assert store.reader.submit(audit.listed, AuditFilter()).result() == (second, first)
    assert chain(store) == AuditChain(0, 2, second.digest)


def test_an_empty_log_verifies(store: Store) -> None:
    assert chain(store) == AuditChain(0, 0, "0" * 64)


def test_the_digest_can_be_computed_from_the_fields(store: Store) -> None:
    """As operations.md says, for programs that keep the output of --json."""
    (kept,) = appended(store, entry(detail="naïve \u2028"))
    fields = asdict(kept)
    assert fields.pop("project") == "", "an empty one is left out"
    del fields["digest"]
    assert hashlib.sha256(canonical(fields).encode()).hexdigest() == kept.digest


@pytest.mark.parametrize(
    "change",
    [
        update(table).where(table.c.seq == 1).values(operator="eve"),
        update(table).where(table.c.seq == 1).values(at=NOW - 1),
        delete(table).where(table.c.seq == 1),
        delete(table).where(table.c.seq == 0),
        update(table).where(table.c.seq == 2).values(seq=3),
    ],
)
def test_changed_and_missing_entries_are_found(store: Store, change: object) -> None:
    appended(store, *map(entry, range(3)))
    store.writer.submit(lambda connection: connection.execute(change)).result()  # type: ignore[call-overload]
    assert chain(store).flaw


def test_filters_and_pages(store: Store) -> None:
    appended(
        store,
        entry(0),
        entry(1, operator="admin", action="run.pause"),
        entry(2, action="runaway", outcome="refused"),
        entry(3, action="operator.revoke", subject="r0"),
    )
    assert listed(store) == [3, 2, 1, 0]
    assert listed(store, limit=2) == [3, 2]
    assert listed(store, after="2") == [1, 0]
    assert listed(store, AuditFilter(operator="admin")) == [1]
    assert listed(store, AuditFilter(action="run")) == [1, 0]
    assert listed(store, AuditFilter(action="run.pause")) == [1]
    assert listed(store, AuditFilter(action="%")) == []
    assert listed(store, AuditFilter(subject="r0")) == [3, 0]
    assert listed(store, AuditFilter(outcome="refused")) == [2]
    assert listed(store, AuditFilter(since=NOW + 1, until=NOW + 3)) == [2, 1]
    with pytest.raises(InvalidRequestError, match="is not a position"):
        listed(store, after="x")


def test_old_entries_go_and_what_is_left_verifies(store: Store) -> None:
    appended(store, *map(entry, range(5)))
    assert store.reader.submit(audit.count_old, before=NOW + 3).result() == 3
    assert store.writer.submit(audit.prune, before=NOW + 3, now=NOW + 9).result() == 3
    assert listed(store) == [5, 4, 3]
    assert chain(store).flaw == ""
    assert store.writer.submit(audit.prune, before=NOW + 3, now=NOW + 9).result() == 0
    store.writer.submit(audit.prune, before=NOW + 100, now=NOW + 200).result()
    assert listed(store) == [6]
    assert chain(store) == replace(chain(store), first=6, entries=1, flaw="")
    appended(store, entry(7))
    assert chain(store).flaw == ""


def test_a_removal_that_no_entry_tells_is_found(store: Store) -> None:
    appended(store, *map(entry, range(3)))
    store.writer.submit(lambda connection: connection.execute(delete(table).where(table.c.seq == 0))).result()
    assert "before 1 are missing" in chain(store).flaw


def test_a_clock_that_was_set_back_removes_nothing_that_is_younger(store: Store) -> None:
    appended(store, entry(5), entry(0), entry(6))
    assert store.reader.submit(audit.count_old, before=NOW + 3).result() == 0
    assert store.writer.submit(audit.prune, before=NOW + 3, now=NOW + 9).result() == 0


def test_many_entries_are_verified_page_by_page(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_PAGE", 2)
    appended(store, *map(entry, range(5)))
    assert chain(store).entries == 5
    assert store.reader.submit(lambda c: c.execute(select(table.c.seq)).scalars().all()).result() == [0, 1, 2, 3, 4]
