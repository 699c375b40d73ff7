"""Measurements of a running job: what is counted, where records go, and traces on demand."""

from atoll.datacenter.metrics.record import MFU_FORMULA, Evaluation, RunFacts, StepRecord
from atoll.datacenter.metrics.sink import JsonLines, Sink, Sinks

__all__ = ["MFU_FORMULA", "Evaluation", "JsonLines", "RunFacts", "Sink", "Sinks", "StepRecord"]
