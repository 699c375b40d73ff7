"""What Gaussian releases cost together: written once, for the server's ledger, a participant's own, and a silo's job.

Read ``composing``. It needs SciPy. Nothing here depends on another room.
"""

from atoll.accounting.calibrating import UnreachableError, least_noise
from atoll.accounting.composing import answered_by, epsilon
from atoll.accounting.filtering import filtered
from atoll.accounting.renyi import ACCOUNTANTS, Accountant
from atoll.accounting.steps import Steps

__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "Steps",
    "UnreachableError",
    "answered_by",
    "epsilon",
    "filtered",
    "least_noise",
]
