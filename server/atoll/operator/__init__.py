"""Atoll from Python: submit jobs to a server, follow runs, fetch models, and manage participants.

::

    from atoll.operator import Cohort, FedAdam, Job, Operator

    with Operator.connect() as operator:
        run = operator.submit(Job(rounds=50, cohort=Cohort(size=20), optimiser=FedAdam(lr=0.01)), weights)
        run.wait()
        model = run.model()

Needs the extra ``operator``. The ``atoll`` command uses this package; docs/operator.md describes it.
"""

from atoll.operator.calls import Timeouts
from atoll.operator.comparison import Comparison
from atoll.operator.errors import (
    BadInputError,
    NotPermittedError,
    OperatorError,
    RunFailedError,
    TimedOutError,
    UnknownCallError,
    UnreachableError,
)
from atoll.operator.history import History
from atoll.operator.ledger import RunLedger
from atoll.operator.models import Model
from atoll.operator.operator import Operator
from atoll.operator.run import Run
from atoll.operator.server_operators import NewOperator
from atoll.server.control import (
    AuditChain,
    AuditEntry,
    ChargesPage,
    ChargeSummary,
    ClosedProject,
    LogLine,
    MemberSummary,
    Myself,
    NewTokens,
    OperatorSummary,
    ParticipantPrivacy,
    ParticipantRun,
    ParticipantSummary,
    PopulationSummary,
    Progress,
    ProjectQuota,
    ProjectRoleSummary,
    ProjectSummary,
    PrunedStorage,
    RevokedOperator,
    RoundSummary,
    RunDetail,
    RunSpending,
    RunSummary,
    ServerInfo,
    TokenSummary,
)
from atoll.server.identity import OperatorCredential
from atoll.server.jobs import (
    AdaptiveClip,
    Aggregation,
    Cohort,
    Evaluation,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
    IterateAveraging,
    Job,
    JobFileError,
    LearnedWindow,
    Optimiser,
    Privacy,
    Retention,
    Statistics,
    Stop,
    Straggler,
)
from atoll.statistics import Findings

__all__ = [
    "AdaptiveClip",
    "Aggregation",
    "AuditChain",
    "AuditEntry",
    "BadInputError",
    "ChargeSummary",
    "ChargesPage",
    "ClosedProject",
    "Cohort",
    "Comparison",
    "Evaluation",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedYogi",
    "Findings",
    "History",
    "IterateAveraging",
    "Job",
    "JobFileError",
    "LearnedWindow",
    "LogLine",
    "MemberSummary",
    "Model",
    "Myself",
    "NewOperator",
    "NewTokens",
    "NotPermittedError",
    "Operator",
    "OperatorCredential",
    "OperatorError",
    "OperatorSummary",
    "Optimiser",
    "ParticipantPrivacy",
    "ParticipantRun",
    "ParticipantSummary",
    "PopulationSummary",
    "Privacy",
    "Progress",
    "ProjectQuota",
    "ProjectRoleSummary",
    "ProjectSummary",
    "PrunedStorage",
    "Retention",
    "RevokedOperator",
    "RoundSummary",
    "Run",
    "RunDetail",
    "RunFailedError",
    "RunLedger",
    "RunSpending",
    "RunSummary",
    "ServerInfo",
    "Statistics",
    "Stop",
    "Straggler",
    "TimedOutError",
    "Timeouts",
    "TokenSummary",
    "UnknownCallError",
    "UnreachableError",
]
