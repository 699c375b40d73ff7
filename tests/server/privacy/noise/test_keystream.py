"""The bits are those of AES-256 in counter mode (NIST SP 800-38A, Section 6.5 and F.5.5)."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from atoll.server.privacy.noise.keystream import RUN, Keystream, number, scattered

KEY = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
"""Key of NIST SP 800-38A, Appendix F."""


def test_bits_are_aes_256_in_counter_mode() -> None:
    """SP 800-38A, F.5.5: the first block of keystream is AES of the counter f0f1...ff."""
    counter = int.from_bytes(bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"), "big")
    output = bytes.fromhex("0bdf7df1591716335e9a8b15c860c502")
    stream, element = counter >> 64, counter & (1 << 64) - 1
    assert number(KEY, stream, element) == int.from_bytes(output, "little")
    assert Keystream(KEY, element, stream).next(1).tobytes() == output


def test_in_order_scattered_and_single_bits_are_the_same() -> None:
    run = Keystream(KEY, 1000)
    words = np.concatenate([run.next(RUN).copy(), run.next(100).copy()])
    elements = np.array([1000, 1003, 1000 + RUN - 1, 1000 + RUN + 99])
    picked = scattered(KEY, 0, elements)
    for place, element in enumerate(elements.tolist()):
        low, high = words[2 * (element - 1000) : 2 * (element - 1000) + 2].tolist()
        assert picked[2 * place : 2 * place + 2].tolist() == [low, high]
        assert number(KEY, 0, element) == high << 64 | low


def test_streams_differ() -> None:
    block = (3).to_bytes(8, "big") + (5).to_bytes(8, "big")
    expected = Cipher(AES(KEY), ECB()).encryptor().update(block)  # noqa: S305 - one block
    assert scattered(KEY, 3, np.array([5])).tobytes() == expected
    assert number(KEY, 2, 5) != number(KEY, 3, 5)


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes, not 31"):
        Keystream(KEY[1:], 0)
