"""The edge client SDK: take part in a federation with your own data.

Write a ``Participant``, then call ``run`` (or ``atoll client start MODULE:CLASS``).
"""

import os

from atoll.client.continuous import Continuous
from atoll.client.errors import (
    BudgetSpentError,
    ClientError,
    DiskReserveError,
    NotPermittedError,
    PolicyError,
    PublicError,
    RefusedError,
    RoundGoneError,
    SettingError,
    StateInUseError,
    TrainerError,
    UnreachableError,
    UpdateError,
    UsageError,
)
from atoll.client.events import Event, Observer
from atoll.client.limits import Limits
from atoll.client.model import Model
from atoll.client.participant import Participant
from atoll.client.participate import Access, run, serve
from atoll.client.policy import Decision, Policy, SettingRule
from atoll.client.privacy_demand import PrivacyDemand
from atoll.client.scores import ScoreHistogram
from atoll.client.settings import Settings
from atoll.client.task import RoundKey, Task, TaskKind
from atoll.client.update import Evaluation, Update

# gRPC reads this variable when it is loaded, after this module. A trainer may fork (torch's DataLoader workers do)
# while gRPC's threads run, and gRPC's fork handlers would then crash the child, which does not use gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__all__ = [
    "Access",
    "BudgetSpentError",
    "ClientError",
    "Continuous",
    "Decision",
    "DiskReserveError",
    "Evaluation",
    "Event",
    "Limits",
    "Model",
    "NotPermittedError",
    "Observer",
    "Participant",
    "Policy",
    "PolicyError",
    "PrivacyDemand",
    "PublicError",
    "RefusedError",
    "RoundGoneError",
    "RoundKey",
    "ScoreHistogram",
    "SettingError",
    "SettingRule",
    "Settings",
    "StateInUseError",
    "Task",
    "TaskKind",
    "TrainerError",
    "UnreachableError",
    "Update",
    "UpdateError",
    "UsageError",
    "run",
    "serve",
]
