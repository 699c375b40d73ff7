"""A cache of the Hugging Face Hub with models in it, as downloads leave it."""

from __future__ import annotations

from pathlib import Path

REVISION = "0123456789abcdef0123456789abcdef01234567"


def cached(hub: Path, name: str) -> Path:
    """Add a model to a cache; return the folder for its files."""
    model = hub / f"models--{name.replace('/', '--')}"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(REVISION, encoding="ascii")
    snapshot = model / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    return snapshot
