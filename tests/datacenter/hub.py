"""What checkpoints of the Hugging Face Hub have: a cache of downloads, and the rotary scaling of Llama 3."""

from __future__ import annotations

from pathlib import Path

REVISION = "0123456789abcdef0123456789abcdef01234567"
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
"""A head has eight frequencies: some stay, some are divided and some are mixed."""


def cached(hub: Path, name: str) -> Path:
    """Add a model to a cache; return the folder for its files."""
    model = hub / f"models--{name.replace('/', '--')}"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(REVISION, encoding="ascii")
    snapshot = model / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    return snapshot
