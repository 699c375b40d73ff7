"""Convert between ``config.json`` and ``[model]``, and refuse features that our blocks do not have."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job.huggingface.families import FAMILIES, LACKING, family_of
from atoll.datacenter.job.huggingface.types import wrong_types
from atoll.datacenter.job.model import ModelSection

CONFIG = "config.json"
Config = Mapping[str, Any]
MAX_CONFIG_BYTES = 1 << 20

_KEYS = {
    "vocab": "vocab_size",
    "layers": "num_hidden_layers",
    "dim": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn_dim": "intermediate_size",
    "norm_epsilon": "rms_norm_eps",
    "tied_embeddings": "tie_word_embeddings",
}
"""Our key → their key, for values with the same meaning."""
_OPTIONAL = {"num_key_value_heads", "tie_word_embeddings"}
_MOE_KEYS = {"experts": "num_local_experts", "top_k": "num_experts_per_tok", "expert_dim": "intermediate_size"}
_WANTED: dict[str, tuple[object, ...]] = {
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "attention_dropout": (None, 0, 0.0),
    "pretraining_tp": (None, 1),
    "sliding_window": (None,),
    "quantization_config": (None,),
    "router_jitter_noise": (None, 0, 0.0),
}
"""Features of our blocks, by their key; other values are refused by name."""
_CARRIED = (
    "max_position_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "initializer_range",
    "router_aux_loss_coef",
)
"""Keys that a trained model's config takes from the checkpoint that it started from: other tools need them."""
_SCALING = {
    "factor": "factor",
    "low_frequency": "low_freq_factor",
    "high_frequency": "high_freq_factor",
    "original_sequence": "original_max_position_embeddings",
}


def read_config(folder: Path) -> dict[str, Any]:
    """Read ``config.json`` of a folder.

    Raises:
        LayoutError: if it is missing, too large, or not a JSON object.
    """
    path = folder / CONFIG
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise LayoutError(f"{path} has {path.stat().st_size} bytes: a config.json has at most {MAX_CONFIG_BYTES}")
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise LayoutError(
            f"model.weights: {path} cannot be read ({error.strerror}): give the folder of a Hugging Face checkpoint"
        ) from error
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise LayoutError(f"{path} is not a JSON object, but {type(found).__name__}")
    return found


def check_weights(model: ModelSection) -> None:
    """Compare the sizes in ``[model]`` with the checkpoint that it starts from, if there is one of our blocks.

    Raises:
        LayoutError: naming each key that differs with both values, and each feature that our blocks lack.
    """
    if model.weights is None or model.kind != "llama":
        return
    completed(model.model_dump(), Path(model.weights))


def vocabulary_size(folder: Path) -> int | None:
    """Return the size of a checkpoint's vocabulary; None if its config does not give it.

    Raises:
        LayoutError: if its config cannot be read.
    """
    size = read_config(folder).get("vocab_size")
    return size if type(size) is int and size > 0 else None


def unsupported(folder: Path) -> list[str]:
    """Return the features that a checkpoint needs and our blocks lack.

    Raises:
        LayoutError: if its config cannot be read.
    """
    return [*_lacking(read_config(folder), folder / CONFIG)]


def completed(written: Config, folder: Path) -> dict[str, Any]:
    """Return a ``[model]`` section with the values that it leaves to its checkpoint.

    Args:
        written: keys and values of the section.
        folder: folder of the checkpoint.

    Raises:
        LayoutError: if the checkpoint is unreadable or has features that our blocks lack, or if a written value
            contradicts it: names each key with both values.
    """
    if problems := unsupported(folder):
        raise LayoutError(*problems, 'model.kind = "transformers" trains this model with the library\'s own blocks')
    theirs = _theirs(read_config(folder))
    if problems := [*_contradictions("model", written, theirs, folder / CONFIG)]:
        raise LayoutError(*problems)
    given = {key: value for key, value in theirs.items() if value is not None}
    tables = {key: {**given[key], **written[key]} for key in ("moe", "rope_scaling") if written.get(key)}
    return {**given, **written, **tables, "weights": str(folder)}


def config_of(model: ModelSection, dtype: str = "float32") -> dict[str, Any]:
    """Return the ``config.json`` of a model of kind ``llama``.

    Args:
        model: ``[model]``.
        dtype: dtype of the checkpoint's tensors.

    Raises:
        LayoutError: if no such checkpoint can hold the model: experts are balanced by a bias, or no family has its
            combination of settings.
    """
    if model.moe is not None and model.moe.balance == "bias":
        raise LayoutError('model.moe.balance = "bias": a Mixtral checkpoint has no place for the bias')
    kind = family_of(model)
    family = FAMILIES[kind]
    shared = {theirs: getattr(model, ours) for ours, theirs in _KEYS.items()}
    if model.moe is not None:
        shared |= {theirs: getattr(model.moe, ours) for ours, theirs in _MOE_KEYS.items()}
        shared["sliding_window"] = None
    return {
        "architectures": [family.architecture],
        "model_type": kind,
        **shared,
        "head_dim": model.head_dim,
        "hidden_act": family.activations[0],
        "rope_theta": model.rope_theta,
        "rope_parameters": _rope_of(model),
        "torch_dtype": dtype,
        "dtype": dtype,
        **_carried(model),
    }


def _carried(model: ModelSection) -> dict[str, Any]:
    """Return what our blocks do not read from the checkpoint that the model started from, if its folder is here."""
    if model.weights is None or not (Path(model.weights) / CONFIG).is_file():
        return {}
    config = read_config(Path(model.weights))
    return {key: config[key] for key in _CARRIED if key in config}


def _rope_of(model: ModelSection) -> dict[str, Any]:
    if model.rope_scaling is None:
        return {"rope_type": "default", "rope_theta": model.rope_theta}
    scaling = {theirs: getattr(model.rope_scaling, ours) for ours, theirs in _SCALING.items()}
    return {"rope_type": "llama3", "rope_theta": model.rope_theta, **scaling}


def _lacking(config: Config, path: Path) -> Iterator[str]:
    """Yield the features that the checkpoint needs and our blocks lack."""
    kind = config.get("model_type")
    if (family := FAMILIES.get(str(kind))) is None:
        why = f" is not possible, because {LACKING[str(kind)]}" if str(kind) in LACKING else ""
        yield f"{path}: model_type = {kind!r}{why}: supported are {', '.join(map(repr, FAMILIES))}"
        return
    wanted = [*_KEYS.values(), *(_MOE_KEYS.values() if kind == "mixtral" else ())]
    if missing := [key for key in wanted if config.get(key) is None and key not in _OPTIONAL]:
        yield f"{path}: {', '.join(missing)} missing"
        return
    if wrong := [*wrong_types(config)]:
        yield from (f"{path}: {problem}" for problem in wrong)
        return
    for key, allowed in _WANTED.items():
        if key == "sliding_window" and config.get("use_sliding_window") is False:
            continue
        if key in config and config[key] not in allowed:
            yield f"{path}: {key} = {config[key]!r}: this model has only {allowed[-1]!r}"
    for key in ("hidden_act", "hidden_activation"):
        if config.get(key) not in (None, *family.activations):
            yield f"{path}: {key} = {config[key]!r}: this model has only {family.activations[0]!r}"
    yield from _lacking_rope(_rope(config), path)
    if kind == "mixtral" and config.get("num_experts_per_tok") == 1:
        yield f"{path}: num_experts_per_tok = 1: this model weighs a single expert by its score, Mixtral by 1"


def _lacking_rope(rope: Config, path: Path) -> Iterator[str]:
    scaling = rope.get("rope_type", rope.get("type", "default"))
    if scaling not in ("default", "llama3"):
        yield f"{path}: rope scaling {scaling!r}: this model's rotary positions are scaled as in Llama 3, or not at all"
    elif scaling == "llama3" and (missing := [key for key in _SCALING.values() if key not in rope]):
        yield f"{path}: rope scaling 'llama3' without {', '.join(missing)}"


def _rope(config: Config) -> dict[str, Any]:
    """Return the rotary settings from where a version of ``transformers`` keeps them; the newest comes first."""
    return dict(config.get("rope_parameters") or config.get("rope_scaling") or {})


def _theirs(config: Config) -> dict[str, Any]:
    """Return the checkpoint's values by our keys."""
    found: dict[str, Any] = {ours: config.get(theirs) for ours, theirs in _KEYS.items()}
    found["kv_heads"] = found["kv_heads"] or found["heads"]
    family = FAMILIES[config["model_type"]]
    if found["tied_embeddings"] is None:
        found["tied_embeddings"] = family.tied
    found["head_dim"] = config.get("head_dim") or family.head_dim or found["dim"] // found["heads"]
    found |= family.settings
    found["rope_theta"] = float(config.get("rope_theta") or _rope(config).get("rope_theta") or 10_000.0)
    rope = _rope(config)
    scaled = rope.get("rope_type", rope.get("type")) == "llama3"
    found["rope_scaling"] = {ours: rope[theirs] for ours, theirs in _SCALING.items()} if scaled else None
    found["moe"] = None
    if config["model_type"] == "mixtral":
        found["moe"] = {ours: config.get(theirs) for ours, theirs in _MOE_KEYS.items()} | {"shared_experts": 0}
        del found["ffn_dim"]
    return found


def _contradictions(section: str, written: Config, theirs: Config, path: Path) -> Iterator[str]:
    """Yield the written values that are not the checkpoint's, table by table."""
    for name, value in theirs.items():
        key, said = f"{section}.{name}", written.get(name)
        if isinstance(said, Mapping) and isinstance(value, Mapping):
            yield from _contradictions(key, said, value, path)
        elif isinstance(said, Mapping):
            yield f"the job has [{key}], but {path} has none: leave it out"
        elif name in written and said != value:
            yield f"{key} = {_shown(said)}, but {path} says {_shown(value)}: {_remedy(key, value)}"


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {json.dumps(one)}" for name, one in value.items())
    return json.dumps(value, default=str)


def _remedy(key: str, value: object) -> str:
    if value is None:
        return f"leave out {key}"
    if isinstance(value, Mapping):
        return f"set [{key}] to {_shown(value)}"
    return f"leave it out, or set {key} = {_shown(value)}"
