"""The DiLoCo benchmark: the jobs that it runs, and the results that it reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.datacenter.job import load_job
from atoll.datacenter.train.optimiser import lr_at
from benchmarks.silo.__main__ import main
from benchmarks.silo.diloco import CASES, Seed, bytes_sent, losses
from benchmarks.silo.diloco_runs import CONSTANT, Size, Trained, job_text

SIZE = Size(30, 4, 25, dim=32, rows=8, end_rows=8, warm_lr=3e-3, lr=1e-3, outer="")


def _seed(**of_cases: float) -> Seed:
    return Seed(1000, 2.0, {name.replace("_", " "): Trained([2.1, loss], loss) for name, loss in of_cases.items()})


def test_losses_are_compared_within_a_seed_then_averaged() -> None:
    seeds = [
        _seed(in_step=1.0, float32=1.004, int8=1.004, int4=1.008),
        _seed(in_step=1.2, float32=1.2, int8=1.2072, int4=1.206),
    ]
    found = losses(seeds, SIZE, "bench")
    by_name = {figure.name: figure for figure in found}
    assert by_name["held-out loss after 30 steps in step, mean of 2 seeds"].value == pytest.approx(2.0)
    assert by_name["held-out loss 100 steps later, in step, mean of 2 seeds"].value == pytest.approx(1.1)
    assert by_name["int4 above in step, mean of 2 seeds"].value == pytest.approx((0.8 + 0.5) / 2)
    place = found.index(by_name["int8 above float32, mean of 2 seeds"])
    mean, best, worst = found[place : place + 3]
    assert mean.value == pytest.approx(0.3)
    assert best.value == pytest.approx(0.0)
    assert worst.value == pytest.approx(0.6)
    assert (mean.target, mean.ok, best.target, worst.target, worst.ok) == (0.5, True, None, 0.5, False)


def test_a_single_seed_has_no_spread() -> None:
    names = [one.name for one in losses([_seed(in_step=1.0, float32=1.0, int8=1.0, int4=1.02)], SIZE, "bench")]
    assert "int4 above in step" in names
    assert not [name for name in names if "seed" in name]


def test_bytes_are_those_of_the_encodings_and_of_a_ring() -> None:
    sent = bytes_sent(elements=1 << 20, inner_steps=500)
    assert sent.keys() == {case.name for case in CASES}
    assert sent["in step"] / sent["float32"] == pytest.approx(500)
    assert sent["in step"] / sent["int4"] == pytest.approx(500 * 32 / 4.25)


def test_learning_rates_end_at_zero_but_stay_until_the_start_is_made(tmp_path: Path) -> None:
    rates = {}
    for name, text in (
        ("silo", job_text(SIZE, "text-0", 1, seed=0)),
        ("warm", job_text(SIZE, "text", 2, seed=0, schedule=CONSTANT)),
    ):
        (tmp_path / f"{name}.toml").write_text(text)
        job = load_job(tmp_path / f"{name}.toml")
        rates[name] = [lr_at(step, job.job.steps, job.optimiser.lr, job.schedule) for step in (0, 50, SIZE.steps - 1)]
        assert (job.job.steps, job.federation.inner_steps) == (SIZE.rounds * 25, 25)
    assert rates["silo"][0] < rates["silo"][1] < SIZE.lr
    assert rates["silo"][2] < SIZE.lr / 1000
    assert rates["warm"][1:] == [SIZE.lr, SIZE.lr]


def test_seeds_are_for_the_case_that_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--seeds", "2", "gpu"], ["--seeds", "2"], ["--seeds", "0", "diloco"]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert "--seeds is a number from 1, and diloco's alone" in capsys.readouterr().err
