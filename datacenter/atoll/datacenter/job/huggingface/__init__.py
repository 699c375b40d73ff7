"""Hugging Face checkpoints that a job names: their folder, and ``[model]`` from their ``config.json``."""

from atoll.datacenter.job.huggingface.config import check_weights, completed, config_of, unsupported, vocabulary_size
from atoll.datacenter.job.huggingface.find import find_checkpoint

__all__ = ["check_weights", "completed", "config_of", "find_checkpoint", "unsupported", "vocabulary_size"]
