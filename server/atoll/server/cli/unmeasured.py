"""Metrics that a job decides by and that no round measured, such as a name with a slip of the pen."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.server.control import RunDetail
from atoll.server.control.best import judging_metrics
from atoll.server.jobs import JobFileError, parse_job
from atoll.text.printable import printable


def unmeasured_lines(detail: RunDetail) -> Iterator[str]:
    """A line for each metric that the job of an ended run names and that measured none of its models."""
    if not detail.run.ended or not any(item.released for item in detail.rounds):
        return
    try:
        job = parse_job(detail.job_toml)
    except JobFileError:
        return  # of another version: what it names is not known
    measured = judging_metrics(detail.rounds)
    named = {"retention.best": job.retention.best, "stop.metric": job.stop.metric if job.stop else None}
    for key, metric in named.items():
        if metric is not None and metric not in measured:
            known = printable(", ".join(measured)) or "nothing"
            yield f"never measured: {metric}, which the job names as {key}, so it decided nothing; measured: {known}"
