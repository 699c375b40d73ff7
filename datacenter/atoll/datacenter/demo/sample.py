"""Text that a byte-level model writes."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def write_on(module: nn.Module, start: bytes, length: int, context: int, temperature: float, seed: int) -> str:
    """Go on with a text, a byte at a time.

    Args:
        module: int64 ``[1, bytes]`` to logits ``[1, bytes, 256]``.
        start: what it goes on from.
        length: bytes to write.
        context: bytes that it sees at most.
        temperature: below 1 the likely gets likelier.
        seed: of the draws.

    Returns:
        Start and what follows; bytes that are no UTF-8 are replaced.
    """
    generator = torch.Generator().manual_seed(seed)
    text = torch.tensor([list(start)])
    for _ in range(length):
        logits = module(text[:, -context:])[0, -1] / temperature
        text = torch.cat((text, torch.multinomial(logits.softmax(0), 1, generator=generator)[None]), dim=1)
    return bytes(text[0].tolist()).decode("utf-8", errors="replace")
