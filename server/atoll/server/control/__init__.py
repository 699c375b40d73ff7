"""The control API's answers as frozen values: an operator's view of a server.

Each value has the fields of the message of the same name (``messages.value_of``). ``--json`` prints values
(``as_json``), tables and reports are made from them, and docs/command-line.md documents the fields. Times are seconds
since the epoch, UTC. None means not yet or unknown.
"""

from atoll.server.control.access import (
    ClosedProject,
    Myself,
    NewTokens,
    OperatorCertificate,
    OperatorSummary,
    ParticipantSummary,
    ProjectQuota,
    ProjectRoleSummary,
    ProjectSummary,
    RevokedOperator,
    TokenSummary,
)
from atoll.server.control.json_data import Json, as_json
from atoll.server.control.messages import (
    Following,
    detail_of,
    make_readable,
    message_of,
    progress_of,
    value_of,
    values_of,
)
from atoll.server.control.runs import PHASES, BestModel, MemberSummary, Progress, RoundSummary, RunDetail, RunSummary
from atoll.server.control.server_state import AuditChain, AuditEntry, LogLine, PrunedStorage, ServerInfo
from atoll.server.control.spending import (
    ChargesPage,
    ChargeSummary,
    ParticipantPrivacy,
    ParticipantRun,
    PopulationSummary,
    RunSpending,
)

__all__ = [
    "PHASES",
    "AuditChain",
    "AuditEntry",
    "BestModel",
    "ChargeSummary",
    "ChargesPage",
    "ClosedProject",
    "Following",
    "Json",
    "LogLine",
    "MemberSummary",
    "Myself",
    "NewTokens",
    "OperatorCertificate",
    "OperatorSummary",
    "ParticipantPrivacy",
    "ParticipantRun",
    "ParticipantSummary",
    "PopulationSummary",
    "Progress",
    "ProjectQuota",
    "ProjectRoleSummary",
    "ProjectSummary",
    "PrunedStorage",
    "RevokedOperator",
    "RoundSummary",
    "RunDetail",
    "RunSpending",
    "RunSummary",
    "ServerInfo",
    "TokenSummary",
    "as_json",
    "detail_of",
    "make_readable",
    "message_of",
    "progress_of",
    "value_of",
    "values_of",
]
