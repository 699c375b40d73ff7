"""Pipeline parallel: the model's blocks cut into stages, micro-batches sent through them."""

from atoll.datacenter.parallel.pipeline.deal import Deal
from atoll.datacenter.parallel.pipeline.passes import PipelinePasses

__all__ = ["Deal", "PipelinePasses"]
