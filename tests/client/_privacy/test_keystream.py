"""Random numbers by position: the same for any order of requests, with the right distribution, tails included."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
from scipy import stats

from atoll.client._privacy.keystream import LARGEST_NORMAL, Keystream

KEY = bytes(range(32))
SIZE = 1 << 20


@pytest.mark.parametrize("cuts", [[0, 1000], [0, 1, 2, 3, 500, 1000], [0, 333, 334, 999, 1000]])
def test_any_cut_gives_the_same_numbers(cuts: list[int]) -> None:
    stream = Keystream(KEY)
    for draw in (stream.words, stream.uniforms, stream.normals):
        whole = draw(7, 1000)
        pieces = [draw(7 + first, last - first) for first, last in pairwise(cuts)]
        np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_keys_are_drawn_and_decide_everything() -> None:
    assert not np.array_equal(Keystream().words(0, 4), Keystream().words(0, 4))
    np.testing.assert_array_equal(Keystream(KEY).normals(0, 9), Keystream(KEY).normals(0, 9))
    with pytest.raises(ValueError, match="31 bytes"):
        Keystream(bytes(31))


def test_words_are_the_ciphers() -> None:
    """Words are AES-256-CTR of zeros (NIST SP 800-38A): a block equals the cipher applied to its number."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415

    block = Cipher(algorithms.AES256(KEY), modes.ECB()).encryptor().update((5).to_bytes(16, "big"))  # noqa: S305
    assert Keystream(KEY).words(10, 2).tobytes() == block


def test_normals_do_not_share_bits_with_words() -> None:
    words = set(Keystream(KEY).words(0, 1 << 12).tolist())
    assert not words & set(Keystream(KEY)._stream(1, 0, 1 << 12).tolist())


def test_uniforms_are_uniform() -> None:
    drawn = Keystream(KEY).uniforms(0, SIZE)
    assert 0 <= drawn.min() < drawn.max() < 1
    assert stats.kstest(drawn, "uniform").pvalue > 1e-3


def test_normals_are_normal() -> None:
    drawn = Keystream(KEY).normals(0, SIZE)
    assert stats.kstest(drawn, "norm").pvalue > 1e-3
    edges = np.array([-math.inf, -4, -3, -2, -1, 0, 1, 2, 3, 4, math.inf])
    counts, _ = np.histogram(drawn, edges)
    expected = SIZE * np.diff(stats.norm.cdf(edges))
    assert stats.chisquare(counts, expected).pvalue > 1e-3
    assert abs(np.corrcoef(drawn[::2], drawn[1::2])[0, 1]) < 5 / math.sqrt(SIZE / 2)
    assert abs(np.corrcoef(drawn[::2] ** 2, drawn[1::2] ** 2)[0, 1]) < 5 / math.sqrt(SIZE / 2)


def test_tails_go_as_far_as_they_should() -> None:
    """The expected largest of a million is 4.86 (within 1.0 with probability 1 - 1e-3); none is beyond the bound."""
    drawn = np.abs(Keystream(KEY).normals(0, SIZE))
    assert 4.4 < drawn.max() < 6.5 < LARGEST_NORMAL
    for sigmas in (3.0, 3.5, 4.0, 4.5):
        expected = SIZE * 2 * NormalDist().cdf(-sigmas)
        assert abs(int((drawn > sigmas).sum()) - expected) < 4.5 * math.sqrt(expected) + 1


def test_the_smallest_word_gives_the_largest_radius() -> None:
    assert math.sqrt(-2 * math.log(0.5 * 2.0**-64)) == pytest.approx(LARGEST_NORMAL)
