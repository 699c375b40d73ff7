"""Values derived from a record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.datacenter.metrics.records import FACTS, RECORD, record


def test_rates_follow_from_tokens_and_seconds() -> None:
    assert (RECORD.tokens_per_s, RECORD.step_s, RECORD.data_wait_share) == (4096.0, 0.5, 0.25)
    still = record(seconds=0.0)
    assert (still.tokens_per_s, still.data_wait_share) == (0.0, 0.0)


def test_mfu_is_flops_done_by_flops_possible() -> None:
    assert FACTS.mfu(4096.0) == pytest.approx(4096 * 6000 / (2 * 1e9))
    assert replace(FACTS, peak_flops_per_s=None).mfu(4096.0) is None
