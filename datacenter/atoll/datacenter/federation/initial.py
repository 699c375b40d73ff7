"""Write the model that a federation starts from, as a file for the server: from a job's initial weights, or others."""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from atoll.datacenter.federation.match import layout_of
from atoll.datacenter.models import spec_of
from atoll.datacenter.models.huggingface import start_from
from atoll.datacenter.parallel.initial import copy_whole, fill
from atoll.formats.safetensors import write

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.wire.layout import Layout

_CHUNK_BYTES = 4 << 20


def write_initial(job: SiloJob, path: Path) -> Layout:
    """Write the tensors that ``layout_of`` names for the job's model; all or nothing. Uses no GPU.

    Memory: hardly any, or the whole model if its spec has the weights to start from.

    The weights are created in a temporary file of the same size beside ``path``, which is removed afterwards.

    Raises:
        LayoutError: if ``model.weights`` is missing, damaged or belongs to another model.
        OSError: if writing fails.
    """
    spec = spec_of(job.model)
    layout = layout_of(spec)
    with torch.device("meta"):
        module = spec.build()
    with tempfile.TemporaryFile(dir=path.parent) as scratch:
        scratch.truncate(layout.size_bytes)
        with mmap.mmap(scratch.fileno(), layout.size_bytes) as mapped:
            _place(module, layout, mapped)
            given = {name for name, value in module.state_dict().items() if value.is_meta}
            given |= start_from(module, spec, job.model)
            if spec.weights is not None and job.model.lora is None:  # adapters have none
                given |= copy_whole(module, spec.weights())
            fill(module, spec.initial, job.job.seed, but=given)
            view = memoryview(mapped)
            starts = range(0, len(view), _CHUNK_BYTES)
            write(path, layout, (view[start : start + _CHUNK_BYTES] for start in starts))
            view.release()
            del module
    return layout


def _place(module: nn.Module, layout: Layout, mapped: mmap.mmap) -> None:
    """Move the parameters of a layout into a file."""
    for span in layout.spans:
        owner, _, name = span.spec.name.rpartition(".")
        flat = torch.frombuffer(mapped, dtype=torch.float32, count=span.spec.size, offset=span.byte_start)
        setattr(module.get_submodule(owner), name, nn.Parameter(flat.view(span.spec.shape)))
