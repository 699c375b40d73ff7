"""Hugging Face checkpoints: ``config.json`` beside ``.safetensors`` files, read and written shard by shard."""

from atoll.datacenter.models.huggingface.config import check_weights, config_of, section_of
from atoll.datacenter.models.huggingface.read import load_weights, start_from
from atoll.datacenter.models.huggingface.write import save_model, save_pretrained

__all__ = ["check_weights", "config_of", "load_weights", "save_model", "save_pretrained", "section_of", "start_from"]
