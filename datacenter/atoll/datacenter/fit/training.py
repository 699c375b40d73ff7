"""``fit`` itself: join the ranks, train, and keep the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
import torch.distributed as dist
from torch import nn

from atoll.datacenter.checks.start import create_file_in
from atoll.datacenter.data.dataset import DatasetSequences, MapStyle
from atoll.datacenter.errors import DataError, LayoutError
from atoll.datacenter.fit.given import GIVEN, Given
from atoll.datacenter.fit.jobs import Fields, Layout, Sections, job_of, model_section, planned
from atoll.datacenter.fit.lines import Lines
from atoll.datacenter.job.huggingface import find_checkpoint
from atoll.datacenter.job.operation import FaultsSection
from atoll.datacenter.mesh import World, join_world
from atoll.datacenter.models import spec_of
from atoll.datacenter.models.huggingface import save_model
from atoll.datacenter.models.plain import Loss, plain_spec, tensors_of
from atoll.datacenter.models.pretrained import check_positions, save_pretrained_model
from atoll.datacenter.models.whole import WholeModel
from atoll.datacenter.privacy import open_ledger
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import Summary, open_trainer

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob


@dataclass(frozen=True)
class _Model:
    """The model of a call.

    Attributes:
        module: the caller's module; None for a model given by name.
        checkpoint: folder of the named model; None for a module.
        out: where the trained model is written; None: nowhere.
    """

    module: nn.Module | None
    checkpoint: Path | None
    out: Path | None


def fit(  # noqa: PLR0913  # data, length, and what a script changes most often
    model: nn.Module | str | Path,
    dataset: MapStyle,
    /,
    *,
    steps: int,
    batch: int,
    lr: float = 3e-4,
    loss: Loss | None = None,
    layout: Layout = "auto",
    held_out: MapStyle | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    **sections: Mapping[str, Any],
) -> Summary:
    """Train a model with AdamW: on all ranks that torchrun or Slurm started, or in this process alone.

    Collective. On a GPU matrix products are in bfloat16, with ``privacy`` in float32.

    Args:
        model: a module on the CPU, trained in place: training starts from rank 0's weights, and every rank has the
            trained ones afterwards. Or a ``transformers`` model: the folder of a checkpoint, or a name on the Hugging
            Face Hub, which is downloaded unless it is in the cache.
        dataset: map-style; item i is ``(input, label)``, or a mapping with ``input_ids`` and ``labels``, the same on
            every rank. The labels of a language model are the next tokens: they are not shifted.
        steps: steps of the optimiser.
        batch: items of a step, over all ranks.
        lr: peak learning rate.
        loss: sum of the losses that count, from the module's output and int64 labels; default: cross entropy over
            the last dim of the logits, where a label of -100 does not count.
        layout: ``auto``: for a named model of an architecture that the built-in model supports, the plan's fastest
            layout that fits; for any other, whole replicas if they fit half of a device's memory, else sharded
            parameters (``zero3``). Sections that describe a layout are used as written.
        held_out: data of the same kind that is not trained on, for ``evaluation={"every_steps": 50}``.
        out: folder for a trained model that was given by name: ``config.json`` and ``.safetensors``.
        progress: whether rank 0 prints on standard error: the layout, the checkpoint from which it continues,
            progress, and where the trained model is.
        sections: further settings of the silo job by section; its reference lists them. With
            ``checkpoint={"folder": "kept"}`` the same call continues from the last checkpoint; with
            ``model={"lora": {"rank": 8}}`` adapters are trained, and merged at the end.

    Returns:
        Steps, tokens, the last loss and the last one on held-out data; the same on every rank.

    Raises:
        SettingsFileError: if a value is not allowed; names it and what is.
        LayoutError: if the job does not fit the ranks, or the model cannot be found or read.
        DataError: if the dataset cannot be used, or differs between ranks.
        TrainingError: if loss or gradient are not finite.
    """
    _check_arguments(layout, held_out, sections)
    sequences = DatasetSequences(dataset, type(dataset).__name__)
    apart = None if held_out is None else DatasetSequences(held_out, f"held-out {type(held_out).__name__}")
    found = _found(model, loss, None if out is None else Path(out), sections)
    section = model_section(found.checkpoint, sections.get("model", {}))
    spec = None if found.module is None else plain_spec(found.module, loss)
    given = GIVEN.set(Given(spec, sequences, apart))
    try:
        with join_world(_timeout_s(sections), on_host=_on_host(sections)) as world:
            if found.out is not None and world.is_first:
                _check_out(found.out)
            _agree(found.module, sequences, world)
            job = job_of(section, sequences, world, Fields(steps, batch, lr, layout), sections)
            shape, numbers = sequences.item
            if job.model.kind == "transformers" and len(shape) == 1 and numbers == "i":
                check_positions(job.model, shape[0])
            lines = Lines(shown=progress and world.is_first)
            if layout == "auto":
                job = _with_layout(job, world, lines)
            with open_trainer(job, Path(), world, Unwatched(), console=progress) as trainer:
                ledger = open_ledger(job, trainer.mechanism, world, Path())
                summary = trainer.run(ledger, resumed=partial(lines.resumed, job))
                _keep(trainer.step.passes.parts, job, found)
                lines.written(found.out)
                return summary
    finally:
        GIVEN.reset(given)


def _check_arguments(layout: str, held_out: MapStyle | None, sections: Sections) -> None:
    """Check what the job's settings cannot.

    Raises:
        LayoutError: naming the argument and the remedy.
    """
    if layout not in get_args(Layout):
        raise LayoutError(f'fit(..., layout="{layout}"): allowed are {", ".join(map(repr, get_args(Layout)))}')
    for name, keys in sections.items():
        if not isinstance(keys, Mapping):
            raise LayoutError(
                f'fit(..., {name}={keys!r}): give the keys of a section of the job, such as job={{"seed": 1}}'
            )
    if held_out is not None and "evaluation" not in sections:
        raise LayoutError('fit(..., held_out=...) is not evaluated: give evaluation={"every_steps": N} too')


def _found(model: nn.Module | str | Path, loss: Loss | None, out: Path | None, sections: Sections) -> _Model:
    """Find a named model, and check that the trained model is kept.

    Raises:
        LayoutError: naming the argument and the remedy.
    """
    if isinstance(model, nn.Module):
        if out is not None:
            raise LayoutError(f'fit(..., out="{out}") is for a model given by name: save the trained module yourself')
        return _Model(model, None, None)
    if loss is not None:
        raise LayoutError(f'fit("{model}", ..., loss=...): a loss is for a module; load the model, and give the module')
    if out is None and "folder" not in sections.get("checkpoint", {}):
        raise LayoutError(f'fit("{model}", ...) would keep nothing: give out="FOLDER" for the trained model')
    folder = find_checkpoint(str(model), Path(), download=True)
    if out is not None and out.resolve() == folder:
        raise LayoutError(f'fit("{model}", ..., out="{out}") would replace the model that it reads: give another one')
    return _Model(None, folder, out)


def _check_out(out: Path) -> None:
    """Check that the trained model can be written, before it is trained."""
    try:
        create_file_in(out)
    except OSError as error:
        raise LayoutError(f'fit(..., out="{out}") cannot be written: {error.strerror}; give another folder') from error


def _with_layout(job: SiloJob, world: World, lines: Lines) -> SiloJob:
    """Return the job with its layout, and print it."""
    chosen = planned(job, world)
    if chosen is None:
        return job
    lines.planned(chosen)
    return chosen.job


def _agree(module: nn.Module | None, sequences: DatasetSequences, world: World) -> None:
    """Give every rank rank 0's weights, and check that all have its data."""
    digests: list[str] = [""] * world.size
    dist.all_gather_object(digests, sequences.digest)
    if different := [rank for rank, digest in enumerate(digests) if digest != digests[0]]:
        raise DataError(
            f"the dataset of rank {different[0]} differs from rank 0's: read or make it in the same way on every rank"
        )
    if module is None:
        return
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            here = tensor.detach().to(world.device)
            dist.broadcast(here, 0)
            tensor.copy_(here)


def _timeout_s(sections: Sections) -> float:
    """Limit of the collectives before the job is validated."""
    given = sections.get("faults", {}).get("collective_timeout_s")
    return float(given) if isinstance(given, int | float) else FaultsSection().collective_timeout_s


def _on_host(sections: Sections) -> bool:
    """Whether ranks sum tensors in host memory, before the job is validated."""
    return sections.get("data_parallel", {}).get("cpu_offload") is True


def _keep(parts: Sequence[nn.Module], job: SiloJob, model: _Model) -> None:
    """Copy the trained tensors into the caller's module, or write the model that was named; collective."""
    spec = spec_of(job.model)
    if model.module is not None:
        WholeModel.of(parts, spec).merged(job.model.lora).copy_into(tensors_of(model.module))
    elif model.out is not None and spec.foreign is not None:
        save_model(parts, spec, job.model, model.out)
    elif model.out is not None:
        save_pretrained_model(parts, spec, job.model, model.out)
