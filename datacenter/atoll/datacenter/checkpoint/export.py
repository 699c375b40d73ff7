"""Convert a checkpoint of any layout to a Hugging Face folder, in one process, without the mesh that wrote it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from torch import Tensor

from atoll.datacenter.checkpoint.folder import damage, step_folder, steps_in
from atoll.datacenter.checkpoint.manifest import Manifest, TensorRecord, read_manifest
from atoll.datacenter.checkpoint.state import MODEL
from atoll.datacenter.checkpoint.storage import dtype_of
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.models.huggingface.write import save_pretrained
from atoll.datacenter.models.kinds import spec_of
from atoll.datacenter.models.lora import merged
from atoll.datacenter.models.pretrained import save_pretrained_tensors

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.job.model import ModelSection
    from atoll.datacenter.models.spec import Foreign


def export(job: SiloJob, checkpoints: Path, out: Path, step: int | None = None) -> int:
    """Write the model of a checkpoint, adapters merged.

    Memory: one file's tensors (``write.SHARD_BYTES``) and one whole parameter; the whole model of kind
    ``transformers``.

    Args:
        job: the job that made the checkpoint.
        checkpoints: folder of the checkpoints.
        out: created if it does not exist; files of the same names are replaced.
        step: step of the checkpoint; the newest if None.

    Returns:
        The step of the checkpoint written.

    Raises:
        LayoutError: if there is no such checkpoint, it is of another model, or the model has no Hugging Face form.
        CheckpointError: if it is damaged.
    """
    form = ForeignForm.of(job.model)
    place = _place(checkpoints, step)
    manifest = read_manifest(place)
    if problems := damage(place, manifest.files.items()):
        raise LayoutError(*problems)
    _compare(form.shapes, manifest, place)

    def read(name: str) -> Tensor:
        return _read(place, manifest.tensors[f"{MODEL}{name}"])

    form.save(out, read)
    return manifest.step


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
