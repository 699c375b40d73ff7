"""Job files: parses TOML into one frozen, valid ``JobSpec``, or raises one error that lists every problem.

Read ``tables`` for the tables of the file and their rules, ``spec`` for rules between tables, ``refusals`` for jobs
without a valid privacy account, ``convert`` for the engine's policies, and ``job`` for jobs written in Python.
``runs.submission`` refuses jobs that do not fit the model or the server's state.
"""

from atoll.server.jobs.aggregation_section import Aggregation
from atoll.server.jobs.cohort_section import Cohort
from atoll.server.jobs.convert import (
    averaged_tensors,
    expected_window_s,
    optimiser_of,
    participation_limit_of,
    report_window_of,
    to_run_policy,
)
from atoll.server.jobs.errors import JobFileError
from atoll.server.jobs.evaluation_section import Evaluation, Retention, Stop
from atoll.server.jobs.fragments import Fragments, deal, fragments_of
from atoll.server.jobs.frozen import check_frozen, frozen_tensors, trained_first
from atoll.server.jobs.job import Job
from atoll.server.jobs.load import MAX_JOB_BYTES, parse_job
from atoll.server.jobs.optimiser_section import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
    IterateAveraging,
    Optimiser,
)
from atoll.server.jobs.privacy_section import AdaptiveClip, Privacy
from atoll.server.jobs.spec import JobSpec
from atoll.server.jobs.statistics_model import check_statistics_layout, first_model, release_of, statistics_layout
from atoll.server.jobs.statistics_section import Statistics
from atoll.server.jobs.straggler_section import LearnedWindow, Straggler
from atoll.server.jobs.tables import JobSection, ModelSection

__all__ = [
    "MAX_JOB_BYTES",
    "AdaptiveClip",
    "Aggregation",
    "Cohort",
    "Evaluation",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedYogi",
    "Fragments",
    "IterateAveraging",
    "Job",
    "JobFileError",
    "JobSection",
    "JobSpec",
    "LearnedWindow",
    "ModelSection",
    "Optimiser",
    "Privacy",
    "Retention",
    "Statistics",
    "Stop",
    "Straggler",
    "averaged_tensors",
    "check_frozen",
    "check_statistics_layout",
    "deal",
    "expected_window_s",
    "first_model",
    "fragments_of",
    "frozen_tensors",
    "optimiser_of",
    "parse_job",
    "participation_limit_of",
    "release_of",
    "report_window_of",
    "statistics_layout",
    "to_run_policy",
    "trained_first",
]
