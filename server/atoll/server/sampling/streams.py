"""The random numbers of a draw: a function of sampler, seed, round and attempt, the same on every machine.

They are the keystream of AES-256 in counter mode (NIST SP 800-38A, Section 6.5), keyed by 256 bits of BLAKE3 over these
four. A cryptographic generator, because private runs rely on an unpredictable draw: participants who know their own
draws must not be able to compute other draws.
"""

import numpy as np
import numpy.typing as npt
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

_CONTEXT = "atoll 2026 sampling: sampler, seed, round, attempt"
_WORD = np.dtype("<u8")


def raw_stream(sampler: str, seed: int, number: int, attempt: int, count: int) -> npt.NDArray[np.uint64]:
    """`count` independent uniform 64-bit integers for the draw of round `number`."""
    name = f"{sampler}\0{seed}\0{number}\0{attempt}".encode()
    key = blake3(name, derive_key_context=_CONTEXT).digest(32)
    keystream = Cipher(AES256(key), CTR(bytes(16))).encryptor().update(bytes(_WORD.itemsize * count))
    return np.frombuffer(keystream, _WORD).astype(np.uint64)


def unit_interval(raw: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Uniform doubles in [0, 1): the upper 53 bits as multiples of 2**-53."""
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
