"""A worker's gradient: of the sum of losses over its share of a step, with the number of counted tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from atoll.datacenter.models.huggingface import start_from
from atoll.datacenter.models.llama_spec import IGNORED_LABEL
from atoll.datacenter.models.spec import ModelSpec
from atoll.datacenter.parallel.initial import fill
from atoll.datacenter.parallel.tensor import tie
from atoll.datacenter.train.asynchrony.channel import Push
from atoll.datacenter.train.asynchrony.vector import read_gradients

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.parallel.passes import MicroBatch


def whole_model(job: SiloJob, spec: ModelSpec, device: torch.device) -> nn.Module:
    """Build the job's model without cuts, with initial weights that are the same on every rank."""
    with torch.device("meta"):
        module = spec.build()
    module.to_empty(device=device)
    tie(module, spec)
    fill(module, spec.initial, job.job.seed, but=start_from(module, spec, job.model))
    return module


def run_passes(module: nn.Module, spec: ModelSpec, batches: Sequence[MicroBatch], device: torch.device) -> Push:
    """Run forward and backward passes; the module's gradients are moved to the result."""
    tokens, total = 0, torch.zeros((), device=device)
    for batch in batches:
        tokens += int((batch.labels != IGNORED_LABEL).sum())
        loss = spec.loss(module(batch.tokens.to(device)), batch.labels.to(device))
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        total += loss.detach()
    gradient = read_gradients(list(module.parameters()))
    module.zero_grad(set_to_none=True)
    return Push(gradient, tokens, float(total))
