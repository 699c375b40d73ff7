"""The random numbers of a draw: a function of sampler, seed, round and attempt, the same on every machine.

The generator is Philox4x64-10 (Salmon et al. 2011), keyed with 128 bits of blake3 over the names above. Only its raw
64-bit output is used: numpy keeps a bit generator's stream for ever, but not what `Generator`'s methods make of it
(NEP 19).
"""

import numpy as np
import numpy.typing as npt
from blake3 import blake3

_CONTEXT = "atoll 2025 sampling: sampler, seed, round, attempt"


def raw_stream(sampler: str, seed: int, number: int, attempt: int, count: int) -> npt.NDArray[np.uint64]:
    """`count` independent uniform 64-bit integers for the draw of round `number`."""
    name = f"{sampler}\0{seed}\0{number}\0{attempt}".encode()
    key = int.from_bytes(blake3(name, derive_key_context=_CONTEXT).digest(16), "little")
    return np.random.Philox(key=key).random_raw(count) if count else np.empty(0, np.uint64)


def unit_interval(raw: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Uniform doubles in [0, 1), the multiples of 2**-53 that the upper 53 bits name."""
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
