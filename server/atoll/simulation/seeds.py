"""The seeds of repeats: each repeat has different cohorts and random numbers, the same in every variant."""

from __future__ import annotations

import hashlib

from atoll.server.jobs import Job, JobSpec
from atoll.server.jobs.changes import changed

_BITS = 63


def repeated(job: JobSpec, repeat: int) -> Job:
    """The job with the seeds of a repeat.

    The first repeat (0) has the job's own ``job.seed`` and ``cohort.seed``, or 0 if unset. Each further one has 63 bits
    of SHA-256 of key, own seed and repeat. A private job without ``cohort.seed`` gets none, because its draw is secret.
    """
    seeds: dict[str, object] = {"job.seed": _derived("job.seed", job.job.seed, repeat)}
    if job.privacy is None or job.cohort.seed is not None:
        seeds["cohort.seed"] = _derived("cohort.seed", job.cohort.seed, repeat)
    return changed(job, seeds)


def _derived(key: str, own: int | None, repeat: int) -> int:
    seed = own or 0
    if repeat == 0:
        return seed
    digest = hashlib.sha256(f"{key} {seed} {repeat}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> (64 - _BITS)
