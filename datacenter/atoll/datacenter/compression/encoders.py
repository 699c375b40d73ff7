"""Encode blocks of float32 as bytes and decode them: pure functions, the same on every rank.

==========  =======================================  ==============================
encoder     a block is encoded as                    bytes per element
==========  =======================================  ==============================
``Int8``    integers from -127 to 127 and a scale    1 + 4/256 = 1.016
``Signs``   one bit per element and a scale          1/8 + 4/1024 = 0.129
==========  =======================================  ==============================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_SCALE_BYTES = 4
_STEPS = 127


class Encoder(Protocol):
    """Encodes blocks as messages."""

    @property
    def block(self) -> int:
        """Elements of a block."""
        ...

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's message."""
        ...

    def encode(self, values: Tensor, sizes: Tensor) -> Tensor:
        """Encode blocks.

        Args:
            values: float32 ``[blocks, block]``; 0 beyond a block's size.
            sizes: float32 ``[blocks]``: elements that are not padding, at least 1.

        Returns:
            uint8 ``[blocks, block_bytes]``.
        """
        ...

    def decode(self, messages: Tensor) -> Tensor:
        """Decode messages to float32 ``[blocks, block]``; padding may have any value."""
        ...


@dataclass(frozen=True, slots=True)
class Int8:
    """Rounds to multiples of 1/127 of a block's largest absolute value (Dettmers 2016, section 2, linear)."""

    block: int = 256

    @property
    def block_bytes(self) -> int:
        """One byte per element, and the scale."""
        return self.block + _SCALE_BYTES

    def encode(self, values: Tensor, sizes: Tensor) -> Tensor:
        """See ``Encoder``; the error is at most half a scale: 1/254 of the block's largest absolute value."""
        del sizes
        scales = values.abs().amax(dim=1, keepdim=True) / _STEPS
        steps = (values / scales.clamp(min=torch.finfo(torch.float32).tiny)).round_().clamp_(-_STEPS, _STEPS)
        return torch.cat((steps.to(torch.int8).view(torch.uint8), _bytes(scales)), dim=1)

    def decode(self, messages: Tensor) -> Tensor:
        """See ``Encoder``."""
        steps, scales = _parted(messages, self.block)
        return steps.view(torch.int8).to(torch.float32) * scales


@dataclass(frozen=True, slots=True)
class Signs:
    """Each element's sign times the mean absolute value of its block: 1-bit SGD (Seide et al. 2014).

    The mean makes it a contraction (Karimireddy et al. 2019, section 4), block by block (Zheng et al. 2019). A zero
    counts as positive.

    Raises:
        ValueError: if the bits of a block are not a whole number of bytes.
    """

    block: int = 1024

    def __post_init__(self) -> None:
        if self.block % 8:
            raise ValueError(f"a block of {self.block} signs is not a whole number of bytes")

    @property
    def block_bytes(self) -> int:
        """One bit per element, and the scale."""
        return self.block // 8 + _SCALE_BYTES

    def encode(self, values: Tensor, sizes: Tensor) -> Tensor:
        """See ``Encoder``."""
        scales = values.abs().sum(dim=1, keepdim=True) / sizes[:, None]
        return torch.cat((pack_bits(values >= 0), _bytes(scales)), dim=1)

    def decode(self, messages: Tensor) -> Tensor:
        """See ``Encoder``."""
        bits, scales = _parted(messages, self.block // 8)
        return torch.where(unpack_bits(bits), scales, -scales)


def pack_bits(bits: Tensor) -> Tensor:
    """Pack bool ``[rows, 8 n]`` into uint8 ``[rows, n]``; the first of eight is the lowest bit."""
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (bits.view(bits.shape[0], -1, 8).to(torch.uint8) << places).sum(dim=2, dtype=torch.uint8)


def unpack_bits(packed: Tensor) -> Tensor:
    """Unpack uint8 ``[rows, n]`` to bool ``[rows, 8 n]``."""
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[:, :, None] >> places) & 1).bool().flatten(1)


def _bytes(scales: Tensor) -> Tensor:
    """View float32 ``[blocks, 1]`` as uint8 ``[blocks, 4]``."""
    return scales.flatten().view(torch.uint8).view(-1, _SCALE_BYTES)


def _parted(messages: Tensor, body_bytes: int) -> tuple[Tensor, Tensor]:
    """Split messages into their bodies and scales, float32 ``[blocks, 1]``."""
    return messages[:, :body_bytes].contiguous(), messages[:, body_bytes:].contiguous().view(torch.float32)
