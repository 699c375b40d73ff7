"""A fit recovers a law from losses that the law generated."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from atoll.datacenter.errors import MissingExtraError
from atoll.datacenter.scaling import LAWS, MeasuredRun, ParametricLaw, ScalingError
from atoll.datacenter.scaling.fit import HUBER, Fit, fit_law
from atoll.datacenter.scaling.plot import draw

TRUE = LAWS["besiroglu"]
SIZES, TOKENS = np.geomspace(5e7, 5e9, 5), np.geomspace(1e9, 1e11, 5)


def runs(noise: float = 0.0, *, outlier: float = 1.0) -> list[MeasuredRun]:
    generator = np.random.default_rng(3)
    made = []
    for number, (size, tokens) in enumerate((size, tokens) for size in SIZES for tokens in TOKENS):
        loss = TRUE.loss(size, tokens) * float(np.exp(noise * generator.standard_normal()))
        made.append(MeasuredRun(name=f"run{number}", parameters=size, tokens=tokens, loss=loss))
    made[7] = made[7].model_copy(update={"loss": (made[7].loss or 0.0) * outlier})
    return made


@pytest.fixture(scope="module")
def noisy() -> Fit:
    """A fit to noisy runs."""
    return fit_law(runs(noise=0.002))


def test_exact_losses_give_the_constants_back() -> None:
    assert isinstance(TRUE, ParametricLaw)
    found = fit_law(runs())
    for name in ("irreducible", "a", "b", "alpha", "beta"):
        assert getattr(found.law, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)
    assert found.error < 1e-9


def test_one_broken_run_hardly_moves_the_fit() -> None:
    """This is the purpose of Huber's loss (Hoffmann et al. 2022, section 3.3)."""
    found = fit_law(runs(outlier=1.3))
    assert found.law.alpha == pytest.approx(0.3478, rel=0.02)
    assert found.error > 10 * HUBER


def test_intervals_of_noisy_runs_hold_the_truth_and_grow_beyond_the_runs(noisy: Fit) -> None:
    budget = noisy.largest_flops
    near = noisy.interval(lambda law: law.optimum(budget).parameters)
    far = noisy.interval(lambda law: law.optimum(1000 * budget).parameters)
    assert near.low < TRUE.optimum(budget).parameters < near.high
    assert far.high / far.low > near.high / near.low > 1.0
    assert len(noisy.resampled) == 100
    assert fit_law(runs(noise=0.002)).resampled == noisy.resampled, "the same seed draws the same runs"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (runs()[:5], "5 runs: the law has five constants, at least 6 runs are needed"),
        (runs()[:5] * 2, "1 values of parameters among 10 runs: at least 3 are needed"),
        (runs()[::5] * 2, "1 values of tokens among 10 runs: at least 3 are needed"),
        ([*runs(), MeasuredRun(name="odd", tokens=1e9)], "run odd: no parameters, loss; a fit needs all three"),
    ],
)
def test_runs_that_do_not_determine_the_law_are_refused(made: list[MeasuredRun], message: str) -> None:
    with pytest.raises(ScalingError, match=message):
        fit_law(made)


def test_what_the_runs_do_not_tell_is_said() -> None:
    narrow = [
        MeasuredRun(name="n", parameters=size, tokens=tokens, loss=TRUE.loss(size, tokens))
        for size in (1e6, 2e6, 4e6)
        for tokens in (1e8, 2e8, 4e8)
    ]
    said = "\n".join(fit_law(narrow).warnings)
    assert "parameters vary by a factor of 4 only" in said
    assert "tokens vary by a factor of 4 only" in said
    assert "9 runs: intervals from so few are too narrow" in said


def test_the_picture_shows_runs_and_curves(noisy: Fit, tmp_path: Path) -> None:
    made = runs(noise=0.002)
    draw(noisy, made, tmp_path / "fit.svg")
    assert "</svg>" in (tmp_path / "fit.svg").read_text()
    with pytest.raises(ScalingError, match=r"fit.gif: allowed are names that end in .svg, .png, .pdf"):
        draw(noisy, made, tmp_path / "fit.gif")


@pytest.mark.parametrize(("module", "library"), [("scipy.optimize", "scipy"), ("matplotlib.figure", "matplotlib")])
def test_without_its_library_the_error_says_what_to_install(
    module: str, library: str, noisy: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runs(noise=0.002)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf'needs {library}: pip install .*"\.\[scaling\]"'):
        draw(noisy, made, tmp_path / "fit.svg") if library == "matplotlib" else fit_law(made)
