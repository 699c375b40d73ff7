"""Sample-level differential privacy: bounds the effect of one sequence on the trained model (``[privacy]``)."""

from atoll.datacenter.privacy.budget import Budget
from atoll.datacenter.privacy.opening import open_ledger, open_private
from atoll.datacenter.privacy.passes import Mechanism, PrivatePasses
from atoll.datacenter.privacy.secret import Secret

__all__ = ["Budget", "Mechanism", "PrivatePasses", "Secret", "open_ledger", "open_private"]
