"""The public surface, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import atoll.operator

PUBLIC = [
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
OPERATOR = {
    *(
        "address",
        "audit",
        "audit_chain",
        "charges",
        "close",
        "compare",
        "connect",
        "limit_population",
        "make_operator",
        "make_tokens",
    ),
    *("newest_charges", "newest_run", "operators", "participant_privacy", "participants", "population", "populations"),
    *("health", "log_lines", "participant_named", "prune", "revoke", "revoke_operator"),
    *("set_operator_role", "void_tokens", "whoami"),
    *("project", "projects", "find_project", "make_project", "set_project_quota", "close_project", "within"),
    *("run", "run_ledger", "run_named", "runs", "submit", "tokens"),
}
RUN = {
    "best",
    *(
        "cancel",
        "delete",
        "detail",
        "export",
        "extend",
        "follow",
        "follow_async",
        "histories",
        "history",
        "job",
        "ledger",
    ),
    *("model", "model_ref", "pause", "report", "resume", "rounds", "save_model", "show", "statistics", "summary"),
    *("to_mlflow", "to_tensorboard", "wait"),
}
HEAVY = {"torch", "sqlalchemy", "numba", "scipy", "matplotlib", "click", "rich", "pandas", "IPython", "mlflow"}
HEAVY |= {"pyarrow", "tensorboard", "jinja2"}


def test_the_public_surface_is_what_is_written_here() -> None:
    assert sorted(atoll.operator.__all__) == PUBLIC
    assert [name for name in PUBLIC if not hasattr(atoll.operator, name)] == []


def test_the_methods_are_what_is_written_here() -> None:
    for kind, names in ((atoll.operator.Operator, OPERATOR), (atoll.operator.Run, RUN)):
        assert {name for name in dir(kind) if not name.startswith("_")} == names
        assert [name for name in names if not getattr(kind, name).__doc__] == []


def test_importing_it_loads_nothing_heavy() -> None:
    probe = f"import sys, atoll.operator; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
