"""Tensors of Hugging Face checkpoints, read and written shard by shard; ``job.huggingface`` reads their config."""

from atoll.datacenter.models.huggingface.read import load_weights, start_from
from atoll.datacenter.models.huggingface.write import save_model, save_pretrained

__all__ = ["load_weights", "save_model", "save_pretrained", "start_from"]
