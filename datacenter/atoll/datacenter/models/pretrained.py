"""Any model of the ``transformers`` library: ``kind = "transformers"``, which is replicated or sharded, not cut inside.

Only checkpoints in ``.safetensors`` are read, and no code that comes with a checkpoint is run.
"""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import nn

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.models.plain import plain_spec, tensors_of
from atoll.datacenter.models.whole import WholeModel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch import Tensor

    from atoll.datacenter.job.model import ModelSection
    from atoll.datacenter.models.spec import ModelSpec

_SHOWN = 3


def pretrained_spec(model: ModelSection) -> ModelSpec:
    """Return the spec of the model in the checkpoint ``model.weights``.

    The checkpoint's tensors are read when a model is filled: each rank then has a whole float32 copy in host memory.

    Raises:
        LayoutError: if ``transformers`` is not installed, or cannot build the checkpoint's model.
    """
    folder = Path(model.weights or "")
    kind, config = _kind_of(folder)
    config.use_cache = False  # generation's; training would keep every key and value
    try:
        with torch.device("meta"):
            module: nn.Module = kind(config)
    except Exception as error:  # the library checks a config in many ways
        raise LayoutError(f"model.weights: transformers cannot build the model of {folder}: {error}") from error
    return plain_spec(module, weights=partial(_loaded, folder))


def check_positions(model: ModelSection, sequence: int) -> None:
    """Check that a checkpoint's model has a position for each token of a sequence.

    Raises:
        LayoutError: naming both numbers.
    """
    folder = Path(model.weights or "")
    most = getattr(_kind_of(folder)[1], "max_position_embeddings", None)
    if isinstance(most, int) and sequence > most:
        raise LayoutError(
            f"sequences of {sequence} tokens, but {folder}/config.json has max_position_embeddings = {most}: use "
            "shorter ones (batch.sequence), or raise it there if the model's positions are rotary"
        )


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


def save_pretrained_tensors(
    model: ModelSection,
    shapes: Mapping[str, Sequence[int]],
    trained: Collection[str],
    read: Callable[[str], Tensor],
    out: Path,
) -> None:
    """Write a model of kind ``transformers`` from its tensors, adapters merged, in one process.

    Memory: the whole model in float32, and one parameter.

    Args:
        model: ``[model]``; tensors that are not trained are those of ``model.weights``.
        shapes: shapes of all tensors by name.
        trained: names of those that ``read`` returns.
        read: returns a trained tensor.
        out: created if it does not exist; files of the same names are replaced.
    """
    module = _loaded(Path(model.weights or ""))
    held = tensors_of(module)

    def tensor(name: str) -> Tensor:
        return read(name) if name in trained else held[name].detach()

    WholeModel(shapes, frozenset(), tensor, writes=True).merged(model.lora).copy_into(held)
    module.save_pretrained(out)  # type: ignore[operator]  # a PreTrainedModel


def _kind_of(folder: Path) -> tuple[Any, Any]:
    """Return the class of a checkpoint's model, and its config."""
    library = _library()
    try:
        config = library.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the library checks a config in many ways
        raise LayoutError(f"model.weights: transformers cannot read {folder}: {error}") from error
    kind = _class_of(library, config.architectures)
    if kind is None:
        raise LayoutError(
            f"model.weights: {folder}/config.json has architectures = {config.architectures}, and transformers "
            f'{library.__version__} has no such model: use another version, or model.kind = "module:function"'
        )
    return kind, config


def _class_of(library: Any, architectures: Any) -> Any:
    """Return the first class that a config names, if it is a model; the base of all models and functions are none."""
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    found = getattr(library, name, None) if isinstance(name, str) else None
    base = library.PreTrainedModel
    return found if isinstance(found, type) and issubclass(found, base) and found is not base else None


def _loaded(folder: Path) -> nn.Module:
    """Return the checkpoint's model in float32.

    Raises:
        LayoutError: if it cannot be read, or lacks a tensor: the library would draw it at random on each rank.
    """
    kind, config = _kind_of(folder)
    options = {"dtype": torch.float32, "use_safetensors": True, "output_loading_info": True}
    try:
        module, report = kind.from_pretrained(folder, config=config, ignore_mismatched_sizes=True, **options)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise LayoutError(f"model.weights: transformers cannot load {folder}: {error}") from error
    if lacking := sorted({*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}):
        raise LayoutError(
            f"model.weights: {folder} lacks {len(lacking)} tensors of its {kind.__name__}, or has them in other shapes "
            f"({', '.join(lacking[:_SHOWN])}{', …' if len(lacking) > _SHOWN else ''}): it is damaged, or its "
            "config.json is that of another model"
        )
    found: nn.Module = module
    return found


def _library() -> Any:
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise LayoutError('model.kind = "transformers" needs the library: pip install "transformers>=5"') from error
