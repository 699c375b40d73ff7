"""Bounds of the audit log: texts, refusals, downloads."""

import logging

import pytest

from atoll.server.access.audit_log import (
    MAX_TEXT_CHARS,
    REFUSAL_INTERVAL_S,
    REFUSALS_AT_ONCE,
    AuditLog,
    OperatorDownloads,
)
from atoll.server.stores import AuditEntry, AuditFilter, Store, audit
from tests.server.stores.samples import NOW

REFUSED = AuditEntry(0.0, "dora", "", "", "run.cancel", "r1", "why", "refused", "operator.role")


class Steady:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def entries(store: Store) -> tuple[AuditEntry, ...]:
    return store.reader.submit(audit.listed, AuditFilter()).result()


async def test_an_entry_has_the_time_and_bounded_printable_texts(store: Store) -> None:
    hostile = "\x1b[2J\x00\u202e" + "x" * 10_000
    await AuditLog(store.writer, lambda: NOW).record(AuditEntry(0.0, "dora", "", "", "run.cancel", hostile, hostile))
    (kept,) = entries(store)
    assert kept.at == NOW
    assert kept.subject.isprintable()
    assert kept.detail.startswith(r"\x1b[2J\x00")
    assert len(kept.subject) <= MAX_TEXT_CHARS


async def test_a_flood_of_refusals_is_cut_short_and_said(store: Store) -> None:
    steady = Steady()
    log = AuditLog(store.writer, lambda: NOW, steady)
    for _ in range(REFUSALS_AT_ONCE + 5):
        await log.record(REFUSED)
    assert len(entries(store)) == REFUSALS_AT_ONCE
    steady.now += REFUSAL_INTERVAL_S
    await log.record(REFUSED)
    assert entries(store)[0].detail == "5 refusals before this one are not recorded; why"


async def test_what_is_done_is_always_recorded(store: Store) -> None:
    log = AuditLog(store.writer, lambda: NOW, Steady())
    for outcome in ("refused",) * (REFUSALS_AT_ONCE + 5) + ("done",) * 5:
        await log.record(AuditEntry(0.0, "dora", "", "", "run.cancel", outcome=outcome))
    assert [one.outcome for one in entries(store)[:6]] == ["done"] * 5 + ["refused"]


async def test_one_operators_refusals_do_not_hide_anothers(store: Store) -> None:
    log = AuditLog(store.writer, lambda: NOW, Steady())
    for _ in range(REFUSALS_AT_ONCE + 1):
        await log.record(REFUSED)
    await log.record(AuditEntry(0.0, "eve", "", "", "run.cancel", outcome="refused"))
    assert entries(store)[0].operator == "eve"


async def test_an_entry_that_cannot_be_stored_any_more_is_in_the_log(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuditLog(store.writer, lambda: NOW)
    store.writer.close()
    with caplog.at_level(logging.ERROR):
        log.record_later(REFUSED)
    assert "missing from the audit log: run.cancel r1 of operator dora" in caplog.text


async def test_a_download_is_recorded_once_unless_it_was_expected(store: Store) -> None:
    steady = Steady()
    downloads = OperatorDownloads(AuditLog(store.writer, lambda: NOW), steady)
    downloads.expect("dora", "aa")
    for blob in ("aa", "bb", "aa", "bb"):
        await downloads.check("dora", blob)
    assert [(one.action, one.subject) for one in entries(store)] == [("model.download", "bb")]
    steady.now += 7200.0
    await downloads.check("dora", "bb")
    assert len(entries(store)) == 2
