"""Check that the job's model can be built, and that it fits the checkpoint it starts from."""

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
    """Check the model's kind and settings, the adapters' targets, and the sizes in the checkpoint's config."""
    try:
        with torch.device("meta"):
            spec_of(job.model).build()
        check_weights(job.model)
    except LayoutError as error:
        yield from error.problems
