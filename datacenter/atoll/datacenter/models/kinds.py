"""Find the spec of a model by ``[model] kind``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import torch
from torch import nn

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.models.llama_spec import llama_spec
from atoll.datacenter.models.lora import with_lora
from atoll.datacenter.models.plain import plain_spec
from atoll.datacenter.models.pretrained import pretrained_spec
from atoll.datacenter.models.spec import ModelSpec
from atoll.datacenter.models.vision import vision_spec

if TYPE_CHECKING:
    from atoll.datacenter.job.model import ModelSection


_OURS = {"llama": llama_spec, "vision": vision_spec, "transformers": pretrained_spec}


def spec_of(model: ModelSection) -> ModelSpec:
    """Return the spec of the job's model.

    Raises:
        LayoutError: if the kind is unknown, or the user's function cannot be imported or does not return a spec.
    """
    spec = _OURS.get(model.kind, _users)(model)
    return spec if model.lora is None else with_lora(spec, model.lora)


def _users(model: ModelSection) -> ModelSpec:
    module, _, function = model.kind.partition(":")
    if not function:
        allowed = ", ".join(f'"{kind}"' for kind in _OURS)
        raise LayoutError(f'model.kind = "{model.kind}": allowed are {allowed} and "module:function"')
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise LayoutError(
            f'model.kind = "{model.kind}" cannot be imported: {error}; it must be beside the job file, or on PYTHONPATH'
        ) from error
    try:
        with torch.random.fork_rng():  # every rank starts from the same weights
            torch.manual_seed(0)
            made = make(model.settings)
    except Exception as error:  # user code: any error it raises is an error of the job
        raise LayoutError(
            f'model.kind = "{model.kind}" failed with [model.settings] {dict(model.settings)}: {error!r}'
        ) from error
    if isinstance(made, nn.Module):
        return plain_spec(made)
    if not isinstance(made, ModelSpec):
        raise LayoutError(f'model.kind = "{model.kind}" returned {type(made).__name__}, not a ModelSpec or nn.Module')
    return made
