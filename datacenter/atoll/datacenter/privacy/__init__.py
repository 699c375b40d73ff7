"""Sample-level differential privacy: what one sequence can change in the trained model is bounded (``[privacy]``)."""

from atoll.datacenter.privacy.budget import Budget
from atoll.datacenter.privacy.check import check_privacy
from atoll.datacenter.privacy.opening import open_private
from atoll.datacenter.privacy.passes import Mechanism, PrivatePasses
from atoll.datacenter.privacy.secret import Secret

__all__ = ["Budget", "Mechanism", "PrivatePasses", "Secret", "check_privacy", "open_private"]
