"""The test of the noise's variance: noise that it rejects, noise that it accepts, and the noise of a whole daemon."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from atoll.server.privacy.contract import Contract
from atoll.server.privacy.noise.discrete import DiscreteGaussian
from atoll.server.privacy_audit.auditing import audit, design
from atoll.server.privacy_audit.noise_scale import FALSE_ALARM, noise_found, whitened
from atoll.server.privacy_audit.rehearsal import Safeguards
from atoll.server.privacy_audit.through_daemon import noise_through_daemon
from tests.server.privacy_audit.contracts import BANDED, BLT, GAUSSIAN, POISSON, TREE, contract

CORRELATED = {"tree": TREE, "banded": BANDED, "blt": BLT}
ALL = {"gaussian": GAUSSIAN, "poisson": POISSON, **CORRELATED}
SHARES = [0.75, *(pytest.param(share, marks=pytest.mark.every_fault) for share in (0.5, 0.3, 0.2))]
"""Noise over its claim; the first share is the hardest to see."""
AUDITED = [
    pytest.param(terms, id=name, marks=[pytest.mark.every_case] if name in {"poisson", "blt"} else [])
    for name, terms in ALL.items()
]
"""``test_auditing`` always audits the noise of the two that are left out here."""
INDEPENDENT = [
    pytest.param(terms, id=name, marks=[] if name == "blt" else [pytest.mark.every_case])
    for name, terms in CORRELATED.items()
]
Integers = npt.NDArray[np.int64]
designed = cache(design)


def noise(rounds: int, elements: int, seed: int = 0) -> npt.NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(rounds, elements))


def test_one_per_cent_shows_in_200_000_values() -> None:
    values = noise(1, 200_000)
    found = noise_found(contract(), values)
    assert not found.refuted
    assert found.share == pytest.approx(1, abs=0.006)
    assert found.share < found.share_at_most < found.share * 1.01
    assert noise_found(contract(), 0.99 * values / found.share).refuted


def test_noise_that_one_round_lacks_is_found() -> None:
    values = noise(40, 500)
    values[7] *= 0.5
    assert noise_found(contract(rounds=40), values).missing == ("round 8",)


def test_noise_that_is_drawn_twice_is_found() -> None:
    values = np.repeat(noise(10, 500), 2, axis=0)
    assert noise_found(contract(rounds=20), values).missing == ("differences of rounds",)


def test_right_noise_is_refuted_as_rarely_as_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a chance of 1 in 10 instead of 1e-6: of 400 tries with three looks at least, 40 are expected."""
    monkeypatch.setattr("atoll.server.privacy_audit.noise_scale.FALSE_ALARM", 0.1)
    refuted = sum(noise_found(contract(rounds=4), noise(4, 100, seed)).refuted for seed in range(400))
    assert FALSE_ALARM == 1e-6
    assert 15 <= refuted <= 65


@pytest.mark.parametrize("terms", AUDITED)
def test_noise_as_claimed_is_not_refuted_by_the_audit(terms: Contract) -> None:
    assert not audit(designed(terms)).noise.refuted


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("terms", ALL.values(), ids=ALL)
def test_noise_below_the_claim_is_refuted_by_the_audit(terms: Contract, share: float) -> None:
    """True epsilons from 6.5 to 86 where 4.4 is claimed: canaries alone do not show them."""
    found = audit(designed(terms), safeguards=Safeguards(noise=share))
    assert found.refuted
    assert found.noise.missing[0] == "all rounds"
    assert found.noise.share == pytest.approx(share, rel=0.05)


@pytest.mark.parametrize("terms", INDEPENDENT)
def test_correlated_noise_is_made_independent(terms: Contract) -> None:
    """The raw noise of these mechanisms says little about their variance; the independent noise has the claimed one."""
    found = noise_through_daemon(terms, rounds=8, elements=4096)
    assert found.share == pytest.approx(1, abs=0.02)
    raw = noise(8, 64)
    assert not np.allclose(whitened(terms, raw), raw)


@pytest.mark.parametrize("terms", ALL.values(), ids=ALL)
def test_a_daemons_releases_have_the_noise_of_their_contract(terms: Contract) -> None:
    found = noise_through_daemon(terms)
    assert not found.refuted
    assert found.values >= 200_000 or terms.rounds * 32_768 == found.values
    assert found.share == pytest.approx(1, abs=0.012)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("terms", [GAUSSIAN, *CORRELATED.values()], ids=["gaussian", *CORRELATED])
def test_noise_that_is_drawn_too_small_below_the_daemon_is_refuted(
    terms: Contract, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = DiscreteGaussian.draw

    def smaller(self: DiscreteGaussian, out: Integers, key: bytes, start: int = 0) -> None:
        draw(self, out, key, start)
        out[:] = np.rint(share * out).astype(np.int64)

    monkeypatch.setattr(DiscreteGaussian, "draw", smaller)
    found = noise_through_daemon(terms, rounds=4, elements=2048)
    assert found.refuted
    assert found.missing[0] == "all rounds"
    assert found.share == pytest.approx(share, rel=0.1)
