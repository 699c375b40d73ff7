"""The models, and what a model must say of itself to be cut: ``spec``."""

from atoll.datacenter.models.kinds import spec_of
from atoll.datacenter.models.spec import Constant, ModelSpec, Normal

__all__ = ["Constant", "ModelSpec", "Normal", "spec_of"]
