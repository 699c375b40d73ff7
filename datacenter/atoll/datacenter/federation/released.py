"""Write the model that a run released as a folder for Hugging Face's libraries, adapters merged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open
from torch import Tensor

from atoll.datacenter.checkpoint.export import ForeignForm
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.federation.match import check_layout
from atoll.datacenter.models import spec_of
from atoll.datacenter.models.huggingface.read import read_tensor
from atoll.formats.safetensors import read_header

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.models.spec import Foreign


def export_released(job: SiloJob, model: Path, out: Path) -> int:
    """Write a run's model; frozen weights come from the checkpoint that the job starts from.

    Memory: one file's tensors (``write.SHARD_BYTES``) and one whole parameter; the whole model of kind
    ``transformers``.

    Args:
        job: a job of the run's silos.
        model: the run's model, as ``atoll run model`` writes it.
        out: created if it does not exist; files of the same names are replaced.

    Returns:
        Number of the file's tensors.

    Raises:
        LayoutError: if the file is of another model, the model has no Hugging Face form, or there is no file to read
            frozen weights from.
        SafetensorsError: if the file is damaged.
    """
    form = ForeignForm.of(job.model)
    layout, _ = read_header(model)
    check_layout(layout, spec_of(job.model))
    there = {one.name for one in layout.tensors}
    frozen = [name for name in form.shapes if name not in there]
    if frozen and job.model.weights is None:
        raise LayoutError(
            f"{model} has no {frozen[0]} (and {len(frozen) - 1} more), which the run did not train: set model.weights "
            "to the checkpoint that its silos started from"
        )

    def read(name: str) -> Tensor:
        if name not in there and form.foreign is not None:
            return _frozen(form.foreign, name, form.shapes[name], Path(job.model.weights or ""))
        with safe_open(model, framework="pt") as file:
            found: Tensor = file.get_tensor(name)
            return found

    form.save(out, read, there)
    return len(there)


def _frozen(foreign: Foreign, name: str, shape: Sequence[int], weights: Path) -> Tensor:
    sources = foreign(name)
    if not sources:
        raise LayoutError(f"{name} is frozen, and a Hugging Face checkpoint has no such tensor: train it in the run")
    return read_tensor(weights, sources, shape)
