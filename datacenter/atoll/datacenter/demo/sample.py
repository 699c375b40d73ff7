"""Generate text with a byte-level model."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def write_on(module: nn.Module, start: bytes, length: int, context: int, temperature: float, seed: int) -> str:
    """Continue a text, one byte at a time.

    Args:
        module: int64 ``[1, bytes]`` to logits ``[1, bytes, 256]``.
        start: text to continue.
        length: number of bytes to write.
        context: maximum number of bytes that the model sees.
        temperature: values below 1 favour likely bytes.
        seed: seed of the draws.

    Returns:
        Start and continuation; bytes that are not UTF-8 are replaced.
    """
    generator = torch.Generator().manual_seed(seed)
    text = torch.tensor([list(start)])
    for _ in range(length):
        logits = module(text[:, -context:])[0, -1] / temperature
        text = torch.cat((text, torch.multinomial(logits.softmax(0), 1, generator=generator)[None]), dim=1)
    return bytes(text[0].tolist()).decode("utf-8", errors="replace")
