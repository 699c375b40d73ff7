"""From text to tokens."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from atoll.datacenter.data.documents import Tokens

BYTES = "bytes"


class Tokenizer(Protocol):
    """Text to tokens, and how many different ones there are."""

    @property
    def vocab(self) -> int:
        """Every token is below it."""
        ...

    @property
    def digest(self) -> str:
        """The same digest gives the same tokens."""
        ...

    def encode(self, text: bytes) -> Tokens:
        """Tokens of one document in UTF-8, in the smallest dtype that holds ``vocab``."""
        ...


class ByteTokenizer:
    """Each byte is a token."""

    vocab = 256
    digest = BYTES

    def encode(self, text: bytes) -> Tokens:
        """The bytes themselves, not copied (read-only)."""
        return np.frombuffer(text, np.uint8)
