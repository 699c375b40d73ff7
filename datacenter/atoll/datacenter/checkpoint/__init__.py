"""Checkpoints: sharded, asynchronous, for any layout, verified, without anything executable in them.

Read ``state`` for what is kept under which names, ``folder`` for the files on disk, ``checkpoints`` for when.
"""

from atoll.datacenter.checkpoint.checkpoints import Checkpoints
from atoll.datacenter.checkpoint.compare import check_model
from atoll.datacenter.checkpoint.state import Extra, RandomState, Stateful, TrainingState

__all__ = ["Checkpoints", "Extra", "RandomState", "Stateful", "TrainingState", "check_model"]
