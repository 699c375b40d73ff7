"""Finds deciding metrics of a job that no round measured, such as a misspelt name.

This is known as soon as one round has other metrics of the same kind: of participants (``eval/``), or of the server's
evaluator (``server/``).
"""

from __future__ import annotations

from collections.abc import Iterator

from atoll.server.control import RunDetail
from atoll.server.control.best import judging_metrics
from atoll.server.jobs import JobFileError, parse_job
from atoll.text.printable import printable


def unmeasured_lines(detail: RunDetail) -> Iterator[str]:
    """A line for each metric in the job that measured no model, although others did or the run has ended."""
    if not any(item.released for item in detail.rounds):
        return
    try:
        job = parse_job(detail.job_toml)
    except JobFileError:
        return  # a job of another version, whose metrics are unknown
    measured = judging_metrics(detail.rounds)
    named = {"retention.best": job.retention.best, "stop.metric": job.stop.metric if job.stop else None}
    for key, metric in named.items():
        if metric is None or metric in measured:
            continue
        known = printable(", ".join(measured)) or "nothing"
        if detail.run.ended:
            yield f"never measured: {metric}, which the job names as {key}, so it decided nothing; measured: {known}"
        elif any(_kind(other) == _kind(metric) for other in measured):
            yield f"not measured so far: {metric}, which the job names as {key}; measured: {known}"


def _kind(metric: str) -> str:
    return metric.partition("/")[0]
