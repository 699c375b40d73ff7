"""Warnings about private jobs that are valid but unpromising."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.server.identity.names import ParticipantKind
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.events import Sampling
from atoll.server.privacy.signal_to_noise import signal_to_noise_of_run
from atoll.server.runs.private.cautions import warnings_of
from atoll.server.stores import Store, participants
from tests.server.privacy.ledgers import contract
from tests.server.stores.samples import NOW

CAPPED = contract(sampling=Sampling.NONE, sample_rate=1.0, max_participations=2, divisor_weight=3, rounds=8)


@pytest.fixture
def enrolled(store: Store) -> Store:
    """Four participants, one of them revoked."""
    for number in range(4):
        record = participants.Participant(f"p{number}", "clinic", ParticipantKind.EDGE, enrolled_at=NOW)
        store.writer.submit(participants.add, record).result()
    store.writer.submit(participants.revoke, "p0", at=NOW, reason="gone").result()
    return store


def warnings(store: Store, promise: Contract, elements: int = 4) -> tuple[str, ...]:
    return store.reader.submit(lambda connection: tuple(warnings_of(connection, promise, elements, "default"))).result()


def test_noise_beyond_all_that_updates_can_add_up_to_is_hopeless(store: Store) -> None:
    elements = 1000  # at most 100 clip norms of signal, of 10 rounds and 10 participants; noise sqrt(10 * 1000)
    promise = contract()
    assert signal_to_noise_of_run(promise, 10, elements) == pytest.approx(1.0)
    assert warnings(store, promise, elements - 1) == ()
    (warning,) = warnings(store, promise, elements + 100)
    assert "over all 10 rounds signal to noise is 0.95 at best" in warning
    assert "atoll privacy plan" in warning


def test_participations_that_run_out_are_told_with_what_would_fit(enrolled: Store) -> None:
    (warning,) = warnings(enrolled, CAPPED)
    assert "8 rounds with whole cohorts of 3 need 12 participants: each may be in 2 rounds" in warning
    assert "there are 3, enough for 2 rounds" in warning


def test_enough_participants_or_none_yet_are_no_reason_to_warn(enrolled: Store) -> None:
    assert warnings(enrolled, replace(CAPPED, max_participations=8)) == ()
    assert warnings(enrolled, contract()) == ()  # a random draw repeats participants


def test_before_anyone_is_enrolled_there_is_no_warning(store: Store) -> None:
    assert warnings(store, CAPPED) == ()
