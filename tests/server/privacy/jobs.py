"""Job files with a privacy section, for the tests."""

from __future__ import annotations

from atoll.server.jobs import JobSpec, parse_job

COHORTS = {
    "poisson": 'size = 100\nsampler = "poisson"\nrate = 0.01',
    "uniform": "size = 100\nmin_available = 10000",
    "weighted": 'size = 100\nsampler = "weighted"',
    "least_recent": 'size = 100\nsampler = "least_recent"',
    "availability": 'size = 100\nsampler = "availability"',
}
TARGET = "epsilon = 8.0\ndelta = 1e-6"
NOISE = "noise_multiplier = 1.0\ndelta = 1e-6"


def job_text(
    cohort: str = "poisson",
    privacy: str = f"{NOISE}\nclip = 1.0",
    rest: str = '[aggregation]\nweighting = "uniform"',
    rounds: int = 1000,
) -> str:
    """A job with a cohort (a name or text), the keys of its privacy section, and further sections."""
    return f"""\
[job]
name = "private"
rounds = {rounds}
[model]
initial = "init.safetensors"
[cohort]
{COHORTS.get(cohort, cohort)}
[privacy]
population = "wards"
{privacy}
{rest}
"""


def job(
    cohort: str = "poisson",
    privacy: str = f"{NOISE}\nclip = 1.0",
    rest: str = '[aggregation]\nweighting = "uniform"',
    rounds: int = 1000,
) -> JobSpec:
    """The parsed job."""
    return parse_job(job_text(cohort, privacy, rest, rounds))
