"""The secret that determines noise and samples: known to every rank, new at every start, never stored."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist

_WORDS, _WORD_BITS = 2, 63


@dataclass(frozen=True)
class Secret:
    """A key of 126 bits.

    Attributes:
        words: the key in parts.
    """

    words: tuple[int, ...] = field(repr=False)

    @classmethod
    def draw(cls, device: torch.device) -> Secret:
        """Draw from the operating system on rank 0; collective."""
        words = torch.tensor([secrets.randbits(_WORD_BITS) for _ in range(_WORDS)], dtype=torch.int64, device=device)
        dist.broadcast(words, 0)
        return cls(tuple(words.tolist()))

    def generator(self, purpose: str) -> np.random.Generator:
        """Return random numbers for one purpose, independent of those for other purposes.

        Philox takes a key of 128 bits; PyTorch's generator on the CPU takes 32, few enough to try all of them. Philox
        is not a cryptographic generator either.
        """
        digest = hashlib.blake2b(f"{self.words}/{purpose}".encode(), digest_size=16).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
