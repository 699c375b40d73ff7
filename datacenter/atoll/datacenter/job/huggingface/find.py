"""Find the folder of a checkpoint: a folder, or a name on the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

from atoll.datacenter.errors import LayoutError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_FILES = ["*.json", "*.safetensors"]


def find_checkpoint(named: str, beside: Path, *, download: bool = False) -> Path:
    """Return the absolute path of a checkpoint's folder.

    Args:
        named: a folder, relative to ``beside``, or the name of a model on the Hub, such as ``Qwen/Qwen3-0.6B``.
        beside: folder that relative paths start from.
        download: whether a model that is not in the Hub's cache on this machine is downloaded.

    Raises:
        LayoutError: if there is neither; names both places and the remedy.
    """
    folder = (beside / named).resolve()
    if folder.is_dir():
        return folder
    if _HUB_NAME.fullmatch(named) is None:
        raise LayoutError(f'"{named}": there is no folder {folder}: give the folder of a Hugging Face checkpoint')
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415  # an optional library, which transformers needs
    except ModuleNotFoundError:
        raise LayoutError(
            f'"{named}": there is no folder {folder}, and names on the Hugging Face Hub need huggingface_hub: '
            "pip install transformers, or give the folder of a checkpoint"
        ) from None
    try:
        return Path(snapshot_download(named, allow_patterns=_FILES, local_files_only=not download))
    except (OSError, ValueError) as error:
        tried = "cannot be downloaded from the Hugging Face Hub" if download else "is not in the Hugging Face cache"
        raise LayoutError(
            f'"{named}": there is no folder {folder}, and the model {tried} ({type(error).__name__}): run '
            f"`hf download {named}` on a machine with access, or give the folder of a checkpoint"
        ) from error
