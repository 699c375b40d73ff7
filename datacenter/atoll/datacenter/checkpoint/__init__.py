"""Checkpoints: sharded, asynchronous, for any layout, verified, and nothing in them that could run.

Read ``state`` for what is kept and by which names, ``folder`` for how it lies on the disk, ``checkpoints`` for when.
"""

from atoll.datacenter.checkpoint.checkpoints import Checkpoints
from atoll.datacenter.checkpoint.compare import check_model
from atoll.datacenter.checkpoint.state import Extra, Position, RandomState, TrainingState

__all__ = ["Checkpoints", "Extra", "Position", "RandomState", "TrainingState", "check_model"]
