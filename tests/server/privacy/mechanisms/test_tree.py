"""DP-FTRL's tree (Kairouz et al. 2021, Section 3)."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.server.privacy.mechanisms import NoiseState, NoiseStateError, mechanism_named
from tests.server.privacy.mechanisms.kept import SECRET, Releases

TREE = mechanism_named("tree")
SIGMA = 1e5


def test_prefix_sums_carry_one_node_for_each_bit() -> None:
    """Section 3: the prefix of t rounds is the sum of as many nodes as t has bits, each of variance sigma**2."""
    run = Releases(TREE, 20000, SIGMA)
    total = np.zeros(run.size)
    for release in range(1, 20):
        total += run.next()
        assert np.mean(np.square(total)) / SIGMA**2 == pytest.approx(release.bit_count(), rel=0.05)


def test_a_node_is_the_same_noise_in_every_prefix_that_it_is_in() -> None:
    """Prefixes of 4 and 5 share node 4, prefix 5 has node 5 too: the releases' noises add up to them, exactly."""
    run = Releases(TREE, 500, SIGMA)
    prefixes = np.cumsum([run.next() for _ in range(6)], axis=0)
    node_4, node_5 = prefixes[3], prefixes[4] - prefixes[3]
    assert abs(np.corrcoef(node_4, node_5)[0, 1]) < 0.2
    node_6 = prefixes[5] - node_4
    assert abs(np.corrcoef(node_6, node_5)[0, 1]) < 0.2


def test_only_the_prefixs_nodes_are_kept() -> None:
    run = Releases(TREE, 10, SIGMA)
    kept = []
    for _ in range(12):
        run.next()
        kept.append(sorted(int(name.removeprefix("node-")) for name in run.state.kept))
    assert kept[:8] == [[1], [2], [2, 3], [4], [4, 5], [4, 6], [4, 6, 7], [8]]
    assert kept[11] == [8, 12]


def test_a_kept_node_is_that_of_the_set_that_was_released() -> None:
    """Noise that was drawn for another set before a crash is in no later release."""
    run = Releases(TREE, 1000, SIGMA)
    run.noise(b"lost").block(0, 1000)
    first = run.next(b"released")
    second = run.next(b"next")
    assert np.std(first + second) == pytest.approx(SIGMA, rel=0.1)
    assert abs(np.corrcoef(first, first + second)[0, 1]) < 0.2


def test_blocks_and_restarts_change_nothing() -> None:
    run = Releases(TREE, 3000, SIGMA)
    for _ in range(3):
        run.next()
    whole = run.noise().block(0, 3000)
    again = TREE.round(NoiseState.from_json(run.state.to_json()), 3, b"set", SIGMA, {})
    np.testing.assert_array_equal(whole, np.concatenate([again.block(0, 1001), again.block(1001, 3000)]))


def test_noise_of_another_size_is_refused_once_there_is_some() -> None:
    run = Releases(TREE, 10, SIGMA)
    run.next()
    run.sigma = 2 * SIGMA
    with pytest.raises(ValueError, match="200000 grid units, but earlier noise of this run has 100000"):
        run.next()


def test_a_state_without_its_nodes_is_refused() -> None:
    state = NoiseState("tree", 3, SECRET, {})
    with pytest.raises(NoiseStateError, match="after 3 releases is"):
        TREE.round(state, 3, b"", SIGMA, {})
    with pytest.raises(NoiseStateError, match="after 3 releases is"):
        TREE.advance(state, 3, b"", SIGMA, bytes(32))


def test_a_state_reveals_no_earlier_secret_and_repeats_no_release() -> None:
    run = Releases(TREE, 10, SIGMA)
    before = run.state
    run.next()
    assert before.secret.hex() not in str(run.state.to_json())
    with pytest.raises(NoiseStateError, match="release 1: not of tree, release 0"):
        TREE.round(run.state, 0, b"set", SIGMA, {})
