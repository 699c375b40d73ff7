"""Differential privacy as a contract: what a run promises, what each release costs, and which jobs are refused.

Read ``values`` for the words, ``refusals`` for what has no valid account, ``contract`` for what a run promises, and
``accounting`` for what it costs.
"""

from atoll.server.privacy.contract import AdaptiveClipping, Contract
from atoll.server.privacy.refusals import refusals
from atoll.server.privacy.values import Adjacency, Event, Sampling

__all__ = ["AdaptiveClipping", "Adjacency", "Contract", "Event", "Sampling", "refusals"]
