"""Whether the job's model can be made at all, and fits the checkpoint that it starts from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.models.huggingface.config import check_weights
from atoll.datacenter.models.kinds import spec_of

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh.dims import ParallelDims


def check_model(job: SiloJob, _dims: ParallelDims) -> Iterator[str]:
    """A kind that there is, settings that it takes, targets that adapters find, and the checkpoint's own numbers."""
    try:
        with torch.device("meta"):
            spec_of(job.model).build()
        check_weights(job.model)
    except LayoutError as error:
        yield from error.problems
