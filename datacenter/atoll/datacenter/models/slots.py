"""A fixed number of slots for the rows of each expert (Lepikhin et al. 2020, section 3.1; Fedus et al. 2021).

Each expert has as many slots for a sequence as its capacity. All sizes follow from settings, so the host never waits
for the device to learn how many rows were routed. Free slots hold zeros, and are computed and sent like others.
"""

from __future__ import annotations

import torch
from torch import Tensor


def slots_of(chosen: Tensor, places: Tensor, capacity: int, experts: int) -> Tensor:
    """Return the slot of each choice, int64 like ``chosen``; ``experts * batch * capacity`` for a dropped choice.

    Args:
        chosen: int64 ``[batch, sequence, top_k]``: experts.
        places: int64 like ``chosen``: place among the choices of the same expert in the same sequence.
        capacity: slots of an expert for one sequence.
        experts: experts of the model.
    """
    batch = len(chosen)
    rows = torch.arange(batch, device=chosen.device)[:, None, None]
    slots = (chosen * batch + rows) * capacity + places
    return torch.where(places < capacity, slots, experts * batch * capacity)


def fill_slots(hidden: Tensor, slots: Tensor, count: int) -> Tensor:
    """Return ``[count, dim]``: in each slot the token that chose it, zeros in the others.

    Args:
        hidden: ``[batch, sequence, dim]``.
        slots: see ``slots_of``.
        count: slots.
    """
    tokens = hidden.flatten(0, 1)
    owners = torch.arange(len(tokens), device=slots.device)[:, None].expand(-1, slots.shape[-1]).flatten()
    source = slots.new_full((count + 1,), len(tokens)).scatter(0, slots.flatten(), owners)
    padded = torch.cat((tokens, tokens.new_zeros(1, tokens.shape[1])))
    return padded.index_select(0, source[:count])


def pick_slots(mixed: Tensor, slots: Tensor) -> Tensor:
    """Return ``[*slots.shape, dim]``: the content of each choice's slot, zeros for a dropped choice."""
    padded = torch.cat((mixed, mixed.new_zeros(1, mixed.shape[1])))
    return padded.index_select(0, slots.flatten()).view(*slots.shape, -1)
