"""What Gaussian releases cost together: written once, for the server's ledger, a participant's own, and a silo's job.

Read ``composing``. Opacus is imported when the first account needs it. Nothing here depends on another room.
"""

from atoll.accounting.calibrating import UnreachableError, least_noise
from atoll.accounting.composing import Steps, answered_by, epsilon
from atoll.accounting.loading import OpacusMissingError
from atoll.accounting.renyi import ACCOUNTANTS, Accountant

__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "OpacusMissingError",
    "Steps",
    "UnreachableError",
    "answered_by",
    "epsilon",
    "least_noise",
]
