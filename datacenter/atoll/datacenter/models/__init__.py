"""Models, and the ``spec`` in which a model declares how it can be cut."""

from atoll.datacenter.models.kinds import spec_of
from atoll.datacenter.models.spec import Constant, ModelSpec, Normal

__all__ = ["Constant", "ModelSpec", "Normal", "spec_of"]
