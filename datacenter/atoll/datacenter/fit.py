"""Train a plain module on a plain dataset from a script: ``fit``.

::

    from atoll.datacenter.fit import fit

    fit(module, dataset, steps=500, batch=64)            # python train.py
                                                         # torchrun --nproc-per-node 8 train.py

It builds a silo job with the default settings. A job file can express the same: ``model.kind`` and ``data.source`` name
functions that return the module and the dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import DTensor

from atoll.datacenter.data.dataset import DatasetSequences, MapStyle
from atoll.datacenter.errors import DataError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.job.operation import FaultsSection
from atoll.datacenter.mesh import World, join_world
from atoll.datacenter.models.plain import Loss, plain_spec
from atoll.datacenter.models.spec import ModelSpec
from atoll.datacenter.privacy import open_ledger
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import Summary, open_trainer
from atoll.settings import described

Layout: TypeAlias = Literal["auto", "ddp", "zero1", "zero2", "zero3"]
BYTES_PER_PARAMETER = 16
"""Parameter, gradient and AdamW's two states in float32."""
REPLICA_SHARE = 0.5
"""A whole replica may take this share of a GPU's memory; the rest is for activations."""


@dataclass(frozen=True)
class _Given:
    spec: ModelSpec
    sequences: DatasetSequences
    held_out: DatasetSequences | None


@dataclass(frozen=True)
class _Fields:
    """Arguments of ``fit`` besides sections."""

    steps: int
    batch: int
    lr: float
    layout: Layout


_GIVEN: ContextVar[_Given] = ContextVar("given")


def fit(  # noqa: PLR0913  # data, length, and what a script changes most often
    module: nn.Module,
    dataset: MapStyle,
    *,
    steps: int,
    batch: int,
    lr: float = 3e-4,
    loss: Loss | None = None,
    layout: Layout = "auto",
    held_out: MapStyle | None = None,
    progress: bool = True,
    **sections: Mapping[str, Any],
) -> Summary:
    """Train a module in place with AdamW: on all ranks that torchrun or Slurm started, or in this process alone.

    Collective. Training starts from rank 0's weights. On a GPU matrix products are in bfloat16.

    Args:
        module: on the CPU; holds the trained weights on every rank afterwards.
        dataset: map-style; item i is ``(input, label)``, or a mapping with ``input_ids`` and ``labels``, the same on
            every rank.
        steps: steps of the optimiser.
        batch: items of a step, over all ranks.
        lr: peak learning rate.
        loss: sum of the losses that count, from the module's output and int64 labels; default: cross entropy over
            the last dim of the logits, where a label of -100 does not count.
        layout: ``auto``: whole replicas where they fit half of a GPU's memory, else sharded parameters (``zero3``).
        held_out: data of the same kind that is not trained on, for ``evaluation={"every_steps": 50}``.
        progress: whether rank 0 prints progress on standard error.
        sections: further settings of the silo job by section; its reference lists them. With
            ``checkpoint={"folder": "kept"}`` the same call continues from the last checkpoint.

    Returns:
        Steps, tokens, the last loss and the last one on held-out data; the same on every rank.

    Raises:
        SettingsFileError: if a value is not allowed; names it and what is.
        LayoutError: if the job does not fit the ranks.
        DataError: if the dataset cannot be used, or differs between ranks.
        TrainingError: if loss or gradient are not finite.
    """
    sequences = DatasetSequences(dataset, type(dataset).__name__)
    fields = _Fields(steps, batch, lr, layout)
    apart = None if held_out is None else DatasetSequences(held_out, f"held-out {type(held_out).__name__}")
    given = _GIVEN.set(_Given(plain_spec(module, loss), sequences, apart))
    try:
        with join_world(_timeout_s(sections)) as world:
            job = _job(module, world, fields, sections)
            _agree(module, sequences, world)
            with open_trainer(job, Path(), world, Unwatched(), console=progress) as trainer:
                summary = trainer.run(open_ledger(job, trainer.mechanism, world, Path()))
                _write_back(trainer.step.passes.parts, module)
                return summary
    finally:
        _GIVEN.reset(given)


def given_model(_settings: Mapping[str, object]) -> ModelSpec:
    """``model.kind`` of a job that ``fit`` makes."""
    return _GIVEN.get().spec


def given_data(_settings: Mapping[str, object], _sequence: int, split: str) -> DatasetSequences:
    """``data.source`` of a job that ``fit`` makes.

    Raises:
        DataError: if held-out data is requested and was not given.
    """
    given = _GIVEN.get()
    if split == "train":
        return given.sequences
    if given.held_out is None:
        raise DataError("evaluation needs data that is not trained on: fit(..., held_out=...)")
    return given.held_out


def _agree(module: nn.Module, sequences: DatasetSequences, world: World) -> None:
    """Give every rank rank 0's weights, and check that all have its data."""
    digests: list[str] = [""] * world.size
    dist.all_gather_object(digests, sequences.digest)
    if different := [rank for rank, digest in enumerate(digests) if digest != digests[0]]:
        raise DataError(
            f"the dataset of rank {different[0]} differs from rank 0's: read or make it in the same way on every rank"
        )
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            here = tensor.detach().to(world.device)
            dist.broadcast(here, 0)
            tensor.copy_(here)


def _timeout_s(sections: Mapping[str, Mapping[str, Any]]) -> float:
    """Limit of the collectives before the job is validated."""
    given = sections.get("faults", {}).get("collective_timeout_s")
    return float(given) if isinstance(given, int | float) else FaultsSection().collective_timeout_s


def _job(module: nn.Module, world: World, fields: _Fields, sections: Mapping[str, Mapping[str, Any]]) -> SiloJob:
    """Return the job of a fit: its own settings, overridden by the caller's sections."""
    gpu = world.device.type == "cuda"
    tables: dict[str, dict[str, Any]] = {
        "job": {"name": "fit", "steps": fields.steps},
        "model": {"kind": f"{__name__}:{given_model.__name__}"},
        "data": {"source": f"{__name__}:{given_data.__name__}"},
        "batch": {"global_batch": fields.batch, "micro_batch": max(1, fields.batch // world.size)},
        "optimiser": {"lr": fields.lr},
        "data_parallel": {"method": fields.layout if fields.layout != "auto" else _method(module, world)},
        "precision": {"compute": "bfloat16" if gpu else "float32"},
    }
    for name, keys in sections.items():
        tables[name] = {**tables.get(name, {}), **keys}
    try:
        return SiloJob.model_validate(tables)
    except ValidationError as error:
        raise described(error, SiloJob, tables, "fit()", {}) from None


def _method(module: nn.Module, world: World) -> Layout:
    """Choose whole replicas if they leave room for activations, else sharded parameters."""
    if world.device.type != "cuda" or world.size == 1:
        return "ddp"
    needed = BYTES_PER_PARAMETER * sum(parameter.numel() for parameter in module.parameters())
    memory: int = torch.cuda.get_device_properties(world.device).total_memory
    return "ddp" if needed <= REPLICA_SHARE * memory else "zero3"


@torch.no_grad()
def _write_back(parts: Sequence[nn.Module], module: nn.Module) -> None:
    """Copy the trained tensors into the caller's module; collective, one tensor whole at a time."""
    targets = dict(chain(module.named_parameters(), module.named_buffers()))
    for part in parts:
        for name, value in get_model_state_dict(part).items():
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            if name in targets and isinstance(whole, Tensor):
                targets[name].copy_(whole)
