"""Checkpoints: sharded, asynchronous, verified by digest, loadable in any layout, and free of executable content.

``state`` lists what is saved and under which names; ``folder`` describes the files on disk; ``checkpoints`` decides
when to write.
"""

from atoll.datacenter.checkpoint.checkpoints import Checkpoints
from atoll.datacenter.checkpoint.compare import check_model
from atoll.datacenter.checkpoint.state import Extra, RandomState, Stateful, TrainingState

__all__ = ["Checkpoints", "Extra", "RandomState", "Stateful", "TrainingState", "check_model"]
