"""Amdahl, Gustafson, and tables of runs that follow them."""

from __future__ import annotations

import pytest

from atoll.datacenter.scaling import MeasuredRun, ScalingError, amdahl, gustafson, speedup_of


def run(ranks: int, rate: float, step_tokens: float) -> MeasuredRun:
    return MeasuredRun(name=f"on{ranks}", ranks=ranks, tokens_per_s=rate, tokens_per_step=step_tokens)


def test_the_laws() -> None:
    """Amdahl 1967; Gustafson 1988, section 1: s = 0.4 to 0.8 per cent on 1024 processors gives 1016 to 1020."""
    assert amdahl(0.0, 64) == gustafson(0.0, 64) == 64
    assert amdahl(1.0, 64) == gustafson(1.0, 64) == 1
    assert amdahl(0.05, 10**9) == pytest.approx(20.0, rel=1e-6)
    assert gustafson(0.004, 1024) == pytest.approx(1020, abs=0.5)
    assert gustafson(0.008, 1024) == pytest.approx(1016, abs=0.5)


@pytest.mark.parametrize("law", [amdahl, gustafson])
@pytest.mark.parametrize(("share", "ranks"), [(-0.1, 2), (1.1, 2), (0.5, 0)])
def test_what_is_no_share_is_refused(law: object, share: float, ranks: int) -> None:
    assert callable(law)
    with pytest.raises(ScalingError, match="allowed is"):
        law(share, ranks)


def test_strong_scaling_that_follows_amdahl() -> None:
    table = speedup_of([run(ranks, 1000 * amdahl(0.03, ranks), 4096) for ranks in (8, 1, 4, 2)])
    assert table.kind == "strong"
    assert table.serial_share == pytest.approx(0.03)
    assert [row.ranks for row in table.rows] == [1, 2, 4, 8]
    for row in table.rows:
        assert row.speedup == pytest.approx(row.predicted) == pytest.approx(amdahl(0.03, row.ranks))
        assert row.efficiency == pytest.approx(row.speedup / row.ranks)
        assert row.serial_share == (None if row.ranks == 1 else pytest.approx(0.03))


def test_weak_scaling_that_follows_gustafson() -> None:
    table = speedup_of([run(ranks, 500 * gustafson(0.1, ranks), 512 * ranks) for ranks in (1, 2, 4)])
    assert table.kind == "weak"
    assert table.serial_share == pytest.approx(0.1)
    assert table.rows[-1].speedup == pytest.approx(gustafson(0.1, 4))
    assert table.rows[-1].serial_share is None


def test_the_fewest_ranks_need_not_be_one_and_the_fastest_of_equals_counts() -> None:
    table = speedup_of([run(4, 400, 64), run(8, 500, 64), run(8, 720, 64)])
    assert [(row.ranks, row.speedup, row.efficiency) for row in table.rows] == [(4, 4.0, 1.0), (8, 7.2, 0.9)]


def test_what_makes_no_table_is_refused() -> None:
    with pytest.raises(ScalingError, match="1 numbers of ranks among 2 runs"):
        speedup_of([run(2, 1.0, 1.0)] * 2)
    with pytest.raises(ScalingError, match=r"neither the same .* nor in proportion .* 1 ranks: 64, 2 ranks: 96"):
        speedup_of([run(1, 1.0, 64), run(2, 2.0, 96)])
    assert speedup_of([run(1, 1.0, 64), run(2, 2.0, 96)], "weak").kind == "weak"
    with pytest.raises(ScalingError, match="run odd: a table needs ranks, tokens_per_s and tokens_per_step"):
        speedup_of([MeasuredRun(name="odd", ranks=2), run(1, 1.0, 1.0)])
