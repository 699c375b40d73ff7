"""The silo job of a call of ``fit``, and its layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from pydantic import ValidationError

from atoll.datacenter.errors import DataError
from atoll.datacenter.fit.given import given_data, given_model
from atoll.datacenter.job import SiloJob
from atoll.datacenter.job.huggingface import completed, unsupported
from atoll.datacenter.job.parallel import OF_DDP
from atoll.datacenter.machine import DATA_SHEETS, DEFAULT_SHEET, rates_beside, sheet_of
from atoll.datacenter.machine.compute import device_memory_bytes
from atoll.datacenter.mesh.world import ranks_per_node
from atoll.datacenter.models import spec_of
from atoll.datacenter.plan.automatic import PLANNED_KIND, Chosen, choose_layout
from atoll.datacenter.plan.step_time import Machine
from atoll.settings import SettingsFileError, described

if TYPE_CHECKING:
    from atoll.datacenter.data.dataset import DatasetSequences
    from atoll.datacenter.machine import MachineRates
    from atoll.datacenter.mesh import World

_ARGUMENTS = {"job.steps": "steps", "batch.global_batch": "batch", "optimiser.lr": "lr"}
"""Keys of the job that are arguments of ``fit``."""
_MOST_OF_A_PASS = 1 << 20
"""Maximum of ``batch.micro_batch``."""

Layout: TypeAlias = Literal["auto", "ddp", "zero1", "zero2", "zero3"]
Sections: TypeAlias = Mapping[str, Mapping[str, Any]]
_HERE = "fit()"
_KIND = f"{given_model.__module__}:{given_model.__name__}"
"""``model.kind`` of a job that trains the caller's module."""


@dataclass(frozen=True)
class Fields:
    """Arguments of ``fit`` besides sections."""

    steps: int
    batch: int
    lr: float
    layout: Layout


def model_section(checkpoint: Path | None, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``[model]``: our own blocks if they have all that a checkpoint needs, else the ``transformers`` model.

    Args:
        checkpoint: its folder; None for a module.
        written: the caller's keys of ``[model]``.

    Raises:
        LayoutError: if what the caller says contradicts the checkpoint.
    """
    if checkpoint is None:
        return {"kind": _KIND, **written}
    if written.get("kind", "transformers" if unsupported(checkpoint) else PLANNED_KIND) == PLANNED_KIND:
        return completed(written, checkpoint)
    return {"kind": "transformers", **written, "weights": str(checkpoint)}


def job_of(
    model: Mapping[str, Any], sequences: DatasetSequences, world: World, fields: Fields, sections: Sections
) -> SiloJob:
    """Return the job of a fit: its own settings, overridden by the caller's sections.

    Raises:
        SettingsFileError: if a value is not allowed; names the argument, or the key of the caller's section.
        DataError: if the items are not what a language model reads, or too few for one batch.
    """
    gpu = world.device.type == "cuda"
    tables: dict[str, dict[str, Any]] = {
        "job": {"name": "fit", "steps": fields.steps},
        "data": {"source": f"{given_data.__module__}:{given_data.__name__}"},
        "batch": {"global_batch": fields.batch, "micro_batch": _micro_batch(fields.batch, world.size)},
        "optimiser": {"lr": fields.lr},
        "data_parallel": _method(fields.layout, sections.get("data_parallel", {})),
        "precision": {"compute": "bfloat16" if gpu and "privacy" not in sections else "float32"},
    }
    if model.get("kind", PLANNED_KIND) == PLANNED_KIND:
        tables["batch"]["sequence"] = _tokens_of(sequences)
    for name, keys in sections.items():
        tables[name] = {**tables.get(name, {}), **keys}
    tables["model"] = dict(model)
    try:
        job = SiloJob.model_validate(tables)
    except ValidationError as error:
        raise _in_arguments(described(error, SiloJob, tables, _HERE, {}), sections) from None
    if len(sequences) < fields.batch:
        raise DataError(
            f"{_HERE}: batch = {fields.batch}: {sequences.name} has only {len(sequences)} items: "
            "set batch lower, or provide more data"
        )
    return job


def _micro_batch(batch: object, ranks: int) -> int:
    """Return a rank's share of a batch; 1 for anything else, which the job refuses."""
    return min(max(1, batch // ranks), _MOST_OF_A_PASS) if isinstance(batch, int) else 1


def _in_arguments(error: SettingsFileError, sections: Sections) -> SettingsFileError:
    """Return the error with the arguments of ``fit`` in place of keys that the caller did not write."""

    def argument(key: str) -> str:
        section, _, name = key.partition(".")
        return key if name in sections.get(section, {}) else _ARGUMENTS.get(key, key)

    return SettingsFileError(error.file, tuple(replace(one, key=argument(one.key)) for one in error.problems))


def _method(layout: Layout, written: Mapping[str, Any]) -> dict[str, str]:
    """Return the data-parallel method that the call sets; settings of DDP imply DDP. Empty: it is chosen."""
    if layout != "auto":
        return {"method": layout}
    return {"method": "ddp"} if written.keys() & set(OF_DDP) else {}


def planned(job: SiloJob, world: World) -> Chosen | None:
    """Return the job with the layout for these ranks; None if its sections describe one. Collective."""
    described = job.mesh.model_fields_set | job.pipeline.model_fields_set
    described |= job.data_parallel.model_fields_set & {"method"}
    if job.model.kind == PLANNED_KIND:
        described |= job.memory.model_fields_set & {"checkpointing"}
    if described:
        return None
    called = "the given module" if job.model.kind == _KIND else None
    return choose_layout(job, spec_of(job.model), world.size, machine_here(job, world), called=called)


def machine_here(job: SiloJob, world: World) -> Machine:
    """Return the machine of these ranks: the rates that the job names, or a data sheet's, with the memory that is here.

    Collective; the same on every rank.
    """
    per_node = ranks_per_node(world)
    every: list[Any] = [None] * world.size
    dist.all_gather_object(every, (_rates(job, world), device_memory_bytes(world.device, per_node), per_node))
    rates: MachineRates
    rates, why = every[0][0]
    here = {"memory_bytes": min(one[1] for one in every), "ranks_per_node": min(one[2] for one in every)}
    return replace(Machine.of(rates), rates=rates.model_copy(update=here), device="this machine", why=why)


def _rates(job: SiloJob, world: World) -> tuple[MachineRates, str]:
    """Return the rates to plan with, and the reason for a default: no GPU, or no data sheet for it."""
    if job.metrics.rates is not None:
        return rates_beside(job.metrics.rates, Path()), ""
    if world.device.type != "cuda":
        return DATA_SHEETS[DEFAULT_SHEET], "because there is no GPU"
    name = torch.cuda.get_device_name(world.device)
    if (sheet := sheet_of(name)) is None:
        return DATA_SHEETS[DEFAULT_SHEET], f"because there is no data sheet of {name}"
    return sheet, ""


def _tokens_of(sequences: DatasetSequences) -> int:
    """Return the number of tokens of an item."""
    shape, kind = sequences.item
    if len(shape) != 1 or kind != "i":
        raise DataError(
            f"{sequences.name}[0] has an input of shape {shape}: a language model reads a list of token ids"
        )
    return shape[0]
