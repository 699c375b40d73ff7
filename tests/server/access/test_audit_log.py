"""Bounds of the audit log: texts, refusals, downloads."""

import asyncio
import logging
import threading

import pytest
from sqlalchemy import Connection

from atoll.server.access.audit_log import (
    MAX_TEXT_CHARS,
    REFUSAL_INTERVAL_S,
    REFUSALS_AT_ONCE,
    AuditLog,
    OperatorDownloads,
)
from atoll.server.stores import AuditEntry, AuditFilter, Store, audit
from tests.patience import WAIT_S
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
    assert entries(store)[0].detail == "5 refusals before this entry are not recorded; why"


async def test_what_is_done_is_always_recorded(store: Store) -> None:
    log = AuditLog(store.writer, lambda: NOW, Steady())
    for outcome in ("refused",) * (REFUSALS_AT_ONCE + 5) + ("done",) * 5:
        await log.record(AuditEntry(0.0, "dora", "", "", "run.cancel", outcome=outcome))
    assert [one.outcome for one in entries(store)[:6]] == ["done"] * 5 + ["refused"]


async def test_a_call_that_is_broken_off_does_not_take_its_entry_along(store: Store) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: Connection) -> None:
        begun.set()
        go_on.wait(WAIT_S)

    store.writer.submit(hold)
    await asyncio.to_thread(begun.wait, WAIT_S)
    recording = asyncio.ensure_future(AuditLog(store.writer, lambda: NOW).record(REFUSED))
    await asyncio.sleep(0)
    assert store.writer.waiting == 1
    recording.cancel()
    with pytest.raises(asyncio.CancelledError):
        await recording
    go_on.set()
    store.writer.submit(lambda _: None).result()  # after it in the queue
    assert [one.action for one in entries(store)] == ["run.cancel"]


async def test_any_next_entry_says_how_many_refusals_are_missing(store: Store) -> None:
    log = AuditLog(store.writer, lambda: NOW, Steady())
    for _ in range(REFUSALS_AT_ONCE + 3):
        await log.record(REFUSED)
    await log.record(AuditEntry(0.0, "dora", "", "", "run.pause", "r1"))
    assert entries(store)[0].detail == "3 refusals before this entry are not recorded; "


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


async def test_downloads_again_and_again_are_recorded_each_hour(store: Store) -> None:
    steady = Steady()
    downloads = OperatorDownloads(AuditLog(store.writer, lambda: NOW), steady)
    downloads.expect("dora", "aa")
    for _ in range(5):
        steady.now += 2400.0
        await downloads.check("dora", "aa")
    assert len(entries(store)) == 2
