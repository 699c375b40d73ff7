"""Independent noise on each release (Canonne, Kamath, Steinke 2020, Section 3)."""

import numpy as np
import pytest

from atoll.server.privacy.mechanisms import (
    MECHANISMS,
    NoiseState,
    NoiseStateError,
    Strategy,
    mechanism_named,
    new_secret,
)
from atoll.server.privacy.noise import DiscreteGaussian

SECRET = bytes(range(32))
FRESH = b"fresh" * 6 + b"!!"
GAUSSIAN = mechanism_named("gaussian")


def test_a_round_asked_for_again_gives_the_same_noise_in_any_cut() -> None:
    state = GAUSSIAN.begin(SECRET)
    whole = GAUSSIAN.round(state, 0, b"set", 1e6, {}).block(0, 1000)
    again = GAUSSIAN.round(NoiseState.from_json(state.to_json()), 0, b"set", 1e6, {})
    np.testing.assert_array_equal(
        whole, np.concatenate([again.block(0, 1), again.block(1, 999), again.block(999, 1000)])
    )


def test_another_set_of_contributions_gets_other_noise() -> None:
    state = GAUSSIAN.begin(SECRET)
    one, other = (GAUSSIAN.round(state, 0, binding, 1e6, {}).block(0, 1000) for binding in (b"one", b"other"))
    assert np.count_nonzero(one == other) < 10


def test_another_secret_gives_other_noise() -> None:
    one, other = (GAUSSIAN.round(GAUSSIAN.begin(new_secret()), 0, b"", 1e6, {}).block(0, 1000) for _ in range(2))
    assert np.count_nonzero(one == other) < 10


def test_after_advancing_there_is_nothing_to_draw_the_old_noise_from() -> None:
    state = GAUSSIAN.begin(SECRET)
    after = GAUSSIAN.advance(state, 0, b"set", 1e6, FRESH)
    assert after.version == 1
    assert state.secret.hex() not in str(after.to_json())
    assert after.kept == {}
    with pytest.raises(NoiseStateError, match="release 1: not of gaussian, release 0"):
        GAUSSIAN.round(after, 0, b"set", 1e6, {})
    with pytest.raises(NoiseStateError):
        GAUSSIAN.advance(after, 0, b"set", 1e6, FRESH)


@pytest.mark.parametrize("name", MECHANISMS)
def test_an_old_state_reveals_none_of_the_later_keys(name: str) -> None:
    """A stolen backup must not reveal the noise of releases after the next one."""
    mechanism = mechanism_named(name, 3, Strategy((0.5,), (0.25,), 8), 10)
    old = mechanism.begin(SECRET)
    one, other = (mechanism.advance(old, 0, b"set", 1e6, new_secret()) for _ in range(2))
    assert one.secret != other.secret
    assert one.kept == other.kept


def test_noise_is_the_sampler_s_under_the_release_s_key() -> None:
    noise = GAUSSIAN.round(GAUSSIAN.begin(SECRET), 0, b"", 2.5, {}).block(0, 20000)
    assert noise.std() == pytest.approx(2.5, rel=0.02)
    assert DiscreteGaussian(2.5).low_bits == 0


def test_nothing_is_kept_and_so_nothing_sealed() -> None:
    noise = GAUSSIAN.round(GAUSSIAN.begin(SECRET), 0, b"", 2.5, {})
    assert noise.keeps is None
    with pytest.raises(NoiseStateError, match="not kept"):
        noise.seal(np.zeros(3, np.int64), 0)


def test_the_state_does_not_show_its_secret() -> None:
    state = GAUSSIAN.begin(SECRET)
    assert state.secret.hex() not in repr(state)
    assert str(state.secret) not in repr(state)


@pytest.mark.parametrize(
    "damage",
    [{"version": -1}, {"version": "x"}, {"secret": "00"}, {"secret": None}, {"kept": {"a": {}}}, {"kept": None}],
)
def test_a_damaged_state_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(NoiseStateError, match="damaged"):
        NoiseState.from_json(GAUSSIAN.begin(SECRET).to_json() | damage)


def test_the_state_of_another_mechanism_is_refused() -> None:
    state = NoiseState("tree", 0, SECRET)
    with pytest.raises(NoiseStateError, match="tree, release 0: not of gaussian"):
        GAUSSIAN.round(state, 0, b"", 1e6, {})


def test_an_unknown_mechanism_is_refused() -> None:
    with pytest.raises(ValueError, match="'laplace': must be one of gaussian"):
        mechanism_named("laplace")
