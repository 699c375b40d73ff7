"""Privacy accounting of Gaussian releases, for the server's ledger, a participant's own ledgers and a silo's job.

Read ``composing`` first. Needs SciPy. Imports no other part of Atoll.
"""

from atoll.accounting.calibrating import TargetUnreachableError, least_noise
from atoll.accounting.composing import answered_by, epsilon
from atoll.accounting.dp_sgd import DpSgdPlan, DpSgdTraining, plan_dp_sgd
from atoll.accounting.filtering import filtered
from atoll.accounting.renyi import ACCOUNTANTS, Accountant
from atoll.accounting.steps import DATA_NAME_PATTERN, Steps

__all__ = [
    "ACCOUNTANTS",
    "DATA_NAME_PATTERN",
    "Accountant",
    "DpSgdPlan",
    "DpSgdTraining",
    "Steps",
    "TargetUnreachableError",
    "answered_by",
    "epsilon",
    "filtered",
    "least_noise",
    "plan_dp_sgd",
]
