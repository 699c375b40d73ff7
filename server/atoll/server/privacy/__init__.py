"""Differential privacy as a contract: what a run promises, and what each release costs.

Read ``events`` for the terms, ``contract`` for what a run promises, ``deriving`` for how that follows from a job, and
``accounting`` for what it costs; ``jobs.refusals`` has the jobs without a valid account. The other modules import
numba.
"""

from atoll.server.privacy.events import Adjacency, Event, Sampling

__all__ = ["Adjacency", "Event", "Sampling"]
