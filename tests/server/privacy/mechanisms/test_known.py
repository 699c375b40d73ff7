"""Known answers: a run that a newer server resumes gets the same noise and can read the noise that was kept.

Never change these: a release interrupted by a crash would get two different noises, and kept noise would be unreadable.
"""

from __future__ import annotations

import hashlib

import pytest

from atoll.server.privacy.mechanisms import Strategy, derived, mechanism_named
from tests.server.privacy.mechanisms.kept import SECRET, Releases


def test_keys_are_hkdf_expand_with_sha_256() -> None:
    """RFC 5869, Section 2.3: T(1) = HMAC(secret, info | 0x01); info is the context, purpose, version and binding."""
    parts = (b"atoll 2026 noise", b"round", (3).to_bytes(8, "big"), b"set")
    info = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    block = 64
    padded = SECRET.ljust(block, b"\0")
    inner = hashlib.sha256(bytes(one ^ 0x36 for one in padded) + info + b"\x01").digest()
    expected = hashlib.sha256(bytes(one ^ 0x5C for one in padded) + inner).digest()
    assert derived(SECRET, "round", 3, b"set") == expected


def test_no_two_purposes_versions_or_bindings_share_a_key() -> None:
    keys = {
        derived(secret, purpose, version, binding)
        for secret in (SECRET, bytes(32))
        for purpose in ("round", "roun", "advance")
        for version in (0, 1, 256)
        for binding in (b"", b"d", b"set", b"\0")
    }
    assert len(keys) == 2 * 3 * 3 * 4


STRATEGY = Strategy((0.5, 0.9375, 0.99609375), (0.25, 0.125, 0.0625), 6)
KNOWN = {
    ("gaussian", 1): "04585364093bd377e72c41136e1f0f7ffc4fdd9c3b974014ca8ddb381d5e8598",
    ("tree", 1): "eb2ed21f87bd46aee3decd1c400c7a8bc506507dd1a663a816870b6bb9771a4e",
    ("banded", 3): "967487acb44277327a674a0c34fd648d7ac6c201caeb7cdc6d18682204cce7b7",
    ("blt", 1): "ae157b3b9b4753ab94bb603ad9d46feda14a6759dcf3f8060dab13ee3901152a",
}
"""SHA-256 of the noise of five releases of 1,000 elements, of what is kept, and of the state's secret at the end."""


@pytest.mark.parametrize(("name", "bands"), KNOWN)
def test_noise_is_that_of_every_other_version(name: str, bands: int) -> None:
    assert digest(name, bands) == KNOWN[name, bands]


def digest(name: str, bands: int) -> str:
    run, found = Releases(mechanism_named(name, bands, STRATEGY, 10), 1000, 12345.6), hashlib.sha256()
    for number in range(5):
        found.update(run.next(bytes([number])).astype("<i8").tobytes())
    for kept in sorted(run.history):
        found.update(run.history[kept].data)
    found.update(run.state.secret)
    return found.hexdigest()
