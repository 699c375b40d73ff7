"""Encode an update on its weights' device: ``atoll.wire.encoding`` in torch operations, equal bit for bit.

Each operation rounds as IEEE 754 specifies, on GPUs and CPUs alike. Divisors are tensors: on a GPU torch replaces a
division by a Python number by a product with its reciprocal, which rounds differently.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from atoll.wire.blocks import BLOCK, BlockForm, blocks_of
from atoll.wire.encoding import Encoding

_FLOATS = {Encoding.FLOAT64: torch.float64, Encoding.FLOAT16: torch.float16, Encoding.BFLOAT16: torch.bfloat16}
_SMALLEST_SCALE = 2.0**-126
_PIECE = 256 * BLOCK
"""Elements encoded at once on a CPU: intermediate values fit in the processor's cache."""


class Quantised(NamedTuple):
    """An encoded chunk.

    Attributes:
        payload: its bytes, uint8.
        received: what its receiver decodes: float32, of the same length as the values.
    """

    payload: Tensor
    received: Tensor


def quantise(values: Tensor, encoding: Encoding) -> Quantised:
    """Encode finite values on their device, without waiting for it.

    Args:
        values: float32, contiguous, shape ``(n,)``: one chunk.
        encoding: the encoding.
    """
    form = encoding.form
    if form is not None:
        return _in_blocks(values, form)
    stored = values.to(_FLOATS[encoding]) if encoding in _FLOATS else values
    return Quantised(stored.view(torch.uint8), stored.to(torch.float32))


def _in_blocks(values: Tensor, form: BlockForm) -> Quantised:
    size = values.numel()
    if values.device.type != "cpu" or size <= _PIECE:
        scales, packed, received = _blocks(values, form)
        return Quantised(torch.cat((scales, packed)), received)
    parts = [_blocks(piece, form) for piece in torch.split(values, _PIECE)]
    payload = torch.cat([part[0] for part in parts] + [part[1] for part in parts])
    return Quantised(payload, torch.cat([part[2] for part in parts]))


def _blocks(values: Tensor, form: BlockForm) -> tuple[Tensor, Tensor, Tensor]:
    """Return the bytes of scales and of integers, and the products."""
    size = values.numel()
    rows = torch.nn.functional.pad(values, (0, blocks_of(size) * BLOCK - size)).view(-1, BLOCK)
    scales = _scales(rows, form)[:, None]
    divisors = torch.where(scales > 0, scales, torch.inf)
    integers = (rows.double() / divisors.double()).round_().to(torch.int8)  # never a tie: see ``wire.blocks``
    received = (integers * scales).view(-1)[:size]
    packed = integers.view(-1).view(torch.uint8)
    if form.bits == 4:
        packed = (packed[0::2] & 0x0F) | (packed[1::2] << 4)
    return scales.view(-1).view(torch.uint8), packed[: form.integer_bytes(size)], received


def _scales(rows: Tensor, form: BlockForm) -> Tensor:
    """See ``wire.blocks``: the low bits of a scale are 0, so that products are exact."""
    largest = torch.full((1,), float(form.largest), device=rows.device)
    scales = rows.abs().amax(dim=1) / largest
    scales = (scales.view(torch.int32) & -(1 << (form.bits - 1))).view(torch.float32)
    return torch.where(scales < _SMALLEST_SCALE, 0.0, scales)
