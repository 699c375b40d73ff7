"""Convert a checkpoint of any layout to a Hugging Face folder, in one process, without the mesh that wrote it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from atoll.datacenter.checkpoint.folder import damage, step_folder, steps_in
from atoll.datacenter.checkpoint.manifest import Manifest, TensorRecord, read_manifest
from atoll.datacenter.checkpoint.state import MODEL
from atoll.datacenter.checkpoint.storage import dtype_of
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.models.huggingface.read import SINGLE
from atoll.datacenter.models.huggingface.write import save_pretrained
from atoll.datacenter.models.kinds import spec_of
from atoll.datacenter.models.lora import merged
from atoll.datacenter.models.pretrained import save_pretrained_tensors
from atoll.datacenter.models.whole import WholeModel

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.job.model import ModelSection
    from atoll.datacenter.models.spec import Foreign, ModelSpec


def export(job: SiloJob, checkpoints: Path, out: Path, step: int | None = None) -> int:
    """Write the model of a checkpoint, adapters merged.

    A model of the user's own and the vision model become one ``model.safetensors`` with the names of their module.

    Memory: one file's tensors (``write.SHARD_BYTES``) and one whole parameter for our blocks; the whole model for every
    other.

    Args:
        job: the job that made the checkpoint.
        checkpoints: folder of the checkpoints.
        out: created if it does not exist; files of the same names are replaced.
        step: step of the checkpoint; the newest if None.

    Returns:
        The step of the checkpoint written.

    Raises:
        LayoutError: if there is no such checkpoint, or it is of another model.
        CheckpointError: if it is damaged.
    """
    spec = spec_of(job.model)
    own = spec.foreign is None and job.model.kind != "transformers"
    form = None if own else ForeignForm.of(job.model)
    shapes = _own_shapes(spec) if form is None else form.shapes
    place = _place(checkpoints, step)
    manifest = read_manifest(place)
    if problems := damage(place, manifest.files.items()):
        raise LayoutError(*problems)
    _compare(shapes, manifest, place)

    def read(name: str) -> Tensor:
        return _read(place, manifest.tensors[f"{MODEL}{name}"])

    if form is None:
        _save_own(WholeModel(shapes, frozenset(), read, writes=True).merged(job.model.lora), spec.tied, out)
    else:
        form.save(out, read)
    return manifest.step


def _own_shapes(spec: ModelSpec) -> dict[str, Sequence[int]]:
    """Return the shapes of the parameters, and of the buffers that checkpoints hold, by name; tied ones once."""
    with torch.device("meta"):
        module = spec.build()
    held = module.state_dict().keys()
    tensors = chain(module.named_parameters(), module.named_buffers())
    return {name: tuple(value.shape) for name, value in tensors if name in held}


def _save_own(whole: WholeModel, tied: Sequence[tuple[str, str]], out: Path) -> None:
    """Write ``model.safetensors``, which ``module.load_state_dict(load_file(...))`` reads."""
    tensors = {name: whole.tensor(name) for name in whole.shapes}
    tensors |= {name: tensors[kept].clone() for kept, name in tied}
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / SINGLE)


@dataclass(frozen=True)
class ForeignForm:
    """A model as it is written for Hugging Face's libraries.

    Attributes:
        model: ``[model]``.
        foreign: names of its parameters in a checkpoint; None for kind ``transformers``, which has the library's names.
        shapes: shapes of its tensors by name; tied ones once.
    """

    model: ModelSection
    foreign: Foreign | None
    shapes: dict[str, Sequence[int]]

    @classmethod
    def of(cls, model: ModelSection) -> ForeignForm:
        """Return the form of a job's model.

        Raises:
            LayoutError: if it has none.
        """
        spec = spec_of(model)
        if spec.foreign is None and model.kind != "transformers":
            raise LayoutError(
                f'a model of kind "{model.kind}" has no Hugging Face form: read its tensors from the .safetensors '
                "files of a checkpoint, or return a ModelSpec with foreign"
            )
        with torch.device("meta"):
            module = spec.build()
        named: dict[str, Tensor] = dict(module.named_parameters())
        if model.kind == "transformers":
            kept = module.state_dict().keys()
            named |= {name: value for name, value in module.named_buffers() if name in kept}
        return cls(model, spec.foreign, {name: tuple(value.shape) for name, value in named.items()})

    def save(self, out: Path, read: Callable[[str], Tensor], trained: Collection[str] | None = None) -> None:
        """Write the model, adapters merged.

        Args:
            out: created if it does not exist; files of the same names are replaced.
            read: returns a tensor by name.
            trained: names of the tensors to read, where the others are those of ``model.weights``; None: all.
        """
        if self.foreign is None:
            save_pretrained_tensors(self.model, self.shapes, self.shapes if trained is None else trained, read, out)
            return
        shapes, whole = self.shapes, read
        if self.model.lora is not None:
            shapes, whole = merged(shapes, whole, self.model.lora)
        save_pretrained(out, self.model, self.foreign, shapes, whole)


def _place(checkpoints: Path, step: int | None) -> Path:
    there = steps_in(checkpoints)
    if not there:
        raise LayoutError(f"{checkpoints} has no checkpoints")
    if step is not None and step not in there:
        raise LayoutError(f"{checkpoints} has no checkpoint of step {step}; there are {', '.join(map(str, there))}")
    return step_folder(checkpoints, there[-1] if step is None else step)


def _compare(shapes: dict[str, Sequence[int]], manifest: Manifest, place: Path) -> None:
    for name, shape in shapes.items():
        record = manifest.tensors.get(f"{MODEL}{name}")
        if record is None or record.shape != list(shape):
            found = "is missing" if record is None else f"has shape {record.shape}"
            raise LayoutError(f"{place}: {name} {found}, this job's has {list(shape)}: it belongs to another model")


def _read(place: Path, record: TensorRecord) -> Tensor:
    whole = torch.empty(record.shape, dtype=dtype_of(record))
    for piece in record.pieces:
        index = tuple(slice(start, start + size) for start, size in zip(piece.offset, piece.shape, strict=True))
        with safe_open(place / piece.file, framework="pt") as file:
            whole[index] = file.get_tensor(piece.key)
    return whole
