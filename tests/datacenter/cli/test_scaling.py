"""``atoll silo scaling`` as typed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.client.cli.app import run_cli
from atoll.datacenter.scaling import LAWS, amdahl

pytestmark = pytest.mark.slow


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run_cli(["silo", "scaling", *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run_cli(["silo", "scaling", *arguments]) == 2
    return capsys.readouterr().err


def lines(path: Path, *values: dict[str, object]) -> str:
    path.write_text("\n".join(map(json.dumps, values)))
    return str(path)


def test_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "estimate", "--flops", "1e21", "--json"))
    best = found["laws"]["besiroglu"]
    assert best["parameters"] == pytest.approx(LAWS["besiroglu"].optimum(1e21).parameters)
    assert "Hoffmann et al. 2022" in printed(capsys, "estimate", "--flops", "1e21")


def test_a_budget_of_machines_is_gpus_times_days_times_rate_times_mfu(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("estimate", "--gpus", "8", "--days", "2", "--gpu", "a100", "--mfu", "0.5", "--json")
    assert json.loads(printed(capsys, *arguments))["flops"] == pytest.approx(8 * 2 * 86400 * 312e12 * 0.5)


def test_a_budget_must_be_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert "either --flops, or both" in refused(capsys, "estimate", "--gpus", "8")
    assert "either --flops, or both" in refused(capsys, "estimate", "--flops", "1e20", "--gpus", "8", "--days", "1")
    assert 'no rates of "abacus"' in refused(capsys, "estimate", "--gpus", "8", "--days", "1", "--gpu", "abacus")


def test_fit_prints_constants_with_intervals_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    law = LAWS["chinchilla"]
    made: Iterator[dict[str, object]] = (
        {"name": "a", "parameters": n, "tokens": d, "loss": law.loss(n, d)}
        for n in (1e6, 1e7, 1e8)
        for d in (1e8, 1e9, 1e10)
    )
    file, plot = lines(tmp_path / "runs.jsonl", *made), tmp_path / "fit.png"
    found = json.loads(printed(capsys, "fit", file, "--flops", "1e20", "--json"))
    assert found["law"]["alpha"] == pytest.approx(0.34, rel=1e-3)
    assert found["optima"][0]["parameters"] == pytest.approx(law.optimum(1e20).parameters, rel=1e-3)
    assert found["largest_flops"] == pytest.approx(6e18)
    said = printed(capsys, "fit", file, "--plot", str(plot))
    assert "warning: 9 runs" in said
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_speedup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made: Iterator[dict[str, object]] = (
        {"name": "a", "ranks": p, "tokens_per_s": 10 * p, "tokens_per_step": 64} for p in (1, 2, 4)
    )
    file = lines(tmp_path / "runs.jsonl", *made)
    assert json.loads(printed(capsys, "speedup", file, "--json"))["rows"][2]["efficiency"] == 1.0
    assert "strong scaling; S(p) = 1 / (s + (1 - s) / p) fits best with s = 0.000%" in printed(capsys, "speedup", file)


def test_speedup_without_runs_is_what_the_laws_say(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "speedup", "--serial-share", "0.05", "--ranks", "1,16", "--json"))
    assert found["rows"][1]["amdahl"] == pytest.approx(amdahl(0.05, 16))
    assert "Gustafson" in printed(capsys, "speedup", "--serial-share", "0.05")
    assert "whole numbers with commas" in refused(capsys, "speedup", "--serial-share", "0.05", "--ranks", "two")
    assert "either files of runs, or --serial-share" in refused(capsys, "speedup")
