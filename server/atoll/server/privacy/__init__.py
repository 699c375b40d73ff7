"""Differential privacy as a contract: what a run promises, what each release costs, and which jobs are refused.

Read ``values`` for the words, ``refusals`` for what has no valid account, ``contract`` for what a run promises,
``deriving`` for how that follows from a job, and ``accounting`` for what it costs. Only what the job file needs is
exported here: the others bring numba along.
"""

from atoll.server.privacy.refusals import refusals
from atoll.server.privacy.values import Adjacency, Event, Sampling

__all__ = ["Adjacency", "Event", "Sampling", "refusals"]
