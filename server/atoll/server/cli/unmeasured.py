"""Metrics that a job decides by and that no round measured, such as a name with a slip of the pen.

It is known as soon as one round was measured by others of the kind: by participants (``eval/``), or by the server's
evaluator (``server/``).
"""

from __future__ import annotations

from collections.abc import Iterator

from atoll.server.control import RunDetail
from atoll.server.control.best import judging_metrics
from atoll.server.jobs import JobFileError, parse_job
from atoll.text.printable import printable


def unmeasured_lines(detail: RunDetail) -> Iterator[str]:
    """A line for each metric that the job names and that measured no model, though others did or the run has ended."""
    if not any(item.released for item in detail.rounds):
        return
    try:
        job = parse_job(detail.job_toml)
    except JobFileError:
        return  # of another version: what it names is not known
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
