"""Differential privacy: a run's contract with its participants, and the cost of each release.

Read ``events`` for the terms, ``contract`` for a run's promise, ``deriving`` for how it follows from a job, and
``accounting`` for its cost; ``jobs.refusals`` lists the jobs without a valid account. The other modules import numba.
"""

from atoll.server.privacy.events import Adjacency, Event, Sampling

__all__ = ["Adjacency", "Event", "Sampling"]
