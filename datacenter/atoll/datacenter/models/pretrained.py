"""Any model of the ``transformers`` library: ``kind = "transformers"``, which is replicated or sharded, not cut inside.

Only checkpoints in ``.safetensors`` are read, and no code that comes with a checkpoint is run.
"""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.models.plain import plain_spec, tensors_of
from atoll.datacenter.models.whole import WholeModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.datacenter.job.model import ModelSection
    from atoll.datacenter.models.spec import ModelSpec


def pretrained_spec(model: ModelSection) -> ModelSpec:
    """Return the spec of the model that the checkpoint ``model.weights`` is of.

    The checkpoint's tensors are read when a model is filled: each rank then has a whole float32 copy in host memory.

    Raises:
        LayoutError: if ``transformers`` is not installed, or cannot build the checkpoint's model.
    """
    folder = Path(model.weights or "")
    kind, config = _kind_of(folder)
    with torch.device("meta"):
        module: nn.Module = kind(config)
    return plain_spec(module, weights=partial(_loaded, folder))


def save_pretrained_model(parts: Sequence[nn.Module], spec: ModelSpec, model: ModelSection, out: Path) -> None:
    """Write a trained model of kind ``transformers``, adapters merged; collective, rank 0 writes.

    Memory: one whole parameter on each rank, and the whole model in rank 0's host memory.

    Args:
        parts: this rank's model.
        spec: its spec.
        model: ``[model]``.
        out: created if it does not exist; files of the same names are replaced.
    """
    whole = WholeModel.of(parts, spec).merged(model.lora)
    module = _loaded(Path(model.weights or "")) if whole.writes else None
    whole.copy_into({} if module is None else tensors_of(module))
    if module is not None:
        module.save_pretrained(out)  # type: ignore[operator]  # a PreTrainedModel


def _kind_of(folder: Path) -> tuple[Any, Any]:
    """Return the class of a checkpoint's model, and its config."""
    library = _library()
    try:
        config = library.AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise LayoutError(f"model.weights: transformers cannot read {folder}: {error}") from error
    config.use_cache = False  # generation's; training would keep every key and value
    name = (config.architectures or [""])[0]
    if (kind := getattr(library, name, None)) is None:
        raise LayoutError(
            f"model.weights: {folder}/config.json has architectures = {config.architectures}, and transformers "
            f'{library.__version__} has no such class: use another version, or model.kind = "module:function"'
        )
    return kind, config


def _loaded(folder: Path) -> nn.Module:
    kind, config = _kind_of(folder)
    try:
        module: nn.Module = kind.from_pretrained(folder, config=config, dtype=torch.float32, use_safetensors=True)
    except (OSError, ValueError) as error:
        raise LayoutError(f"model.weights: transformers cannot load {folder}: {error}") from error
    return module


def _library() -> Any:
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise LayoutError('model.kind = "transformers" needs the library: pip install "transformers>=5"') from error
