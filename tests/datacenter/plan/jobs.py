"""Jobs to plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atoll.datacenter.job import SiloJob, load_job

EXAMPLES = Path(__file__).parents[3] / "examples" / "silo"
SMALL = {"dim": 64, "heads": 4, "kv_heads": 2, "ffn_dim": 160, "vocab": 256, "layers": 2}
LLAMA_405B = {"vocab": 128_256, "layers": 126, "dim": 16_384, "heads": 128, "kv_heads": 8, "ffn_dim": 53_248}


def small(**sections: dict[str, Any]) -> SiloJob:
    """A job of a small model, with sections in place of the defaults."""
    said: dict[str, Any] = {"job": {"name": "small", "steps": 1}, "model": SMALL, "batch": {"global_batch": 8}}
    return SiloJob.model_validate(said | sections)


def example(name: str, **sections: dict[str, Any]) -> SiloJob:
    """An example's job, with keys of sections replaced."""
    said = load_job(EXAMPLES / f"{name}.toml").model_dump(exclude_unset=True)
    for section, keys in sections.items():
        said[section] = {**said.get(section, {}), **keys}
    return SiloJob.model_validate(said)
