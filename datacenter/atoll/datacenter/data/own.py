"""User-supplied data: a function named in the job file returns sequences or a map-style dataset."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

import numpy as np

from atoll.datacenter.data.dataset import DatasetSequences
from atoll.datacenter.data.packing import Rows, Sequences
from atoll.datacenter.errors import DataError

if TYPE_CHECKING:
    from atoll.datacenter.data.stdlib import Split
    from atoll.datacenter.job.training import DataSection

_NEEDED = ("name", "digest", "__len__", "rows")


def open_own(data: DataSection, sequence: int, split: Split) -> Sequences:
    """Call the function that ``[data] source`` names: ``function(settings, sequence, split)``.

    Args:
        data: the job's ``[data]``, with ``source = "module:function"``.
        sequence: tokens of one sequence.
        split: training data or held-out data.

    Raises:
        DataError: if the function cannot be imported or fails, or if it returns anything but sequences or a dataset.
    """
    module, _, function = data.source.partition(":")
    where = f'data.source = "{data.source}"'
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise DataError(
            f"{where} cannot be imported: {error}; it must be beside the job file, or on PYTHONPATH"
        ) from error
    try:
        made = make(data.settings, sequence, split)
        found = DatasetSequences(made, data.source) if _is_map_style(made) else made
        first = found.rows(np.zeros(1, np.int64)) if _is_complete(found) and len(found) else None
    except DataError:
        raise
    except Exception as error:  # user code: any error it raises is an error of the job
        raise DataError(f"{where} failed with [data.settings] {dict(data.settings)}: {error!r}") from error
    if not _is_complete(found):
        missing = [name for name in _NEEDED if not hasattr(found, name)]
        raise DataError(
            f"{where} returned {type(found).__name__}, which lacks {', '.join(missing)}: return Sequences or a dataset"
        )
    if first is None:
        raise DataError(f"{where} has no sequences in the {split} split")
    _check(where, first)
    if data.document_masks and (first.documents is None or first.positions is None):
        raise DataError(
            f"{where}: rows() returned no documents and positions, but data.document_masks = true: return both, or set "
            "it to false"
        )
    return cast("Sequences", found)


def _is_map_style(made: object) -> bool:
    return hasattr(made, "__getitem__") and hasattr(made, "__len__") and not hasattr(made, "rows")


def _is_complete(found: object) -> bool:
    return all(hasattr(found, name) for name in _NEEDED)


def _check(where: str, first: object) -> None:
    """Check dtypes, and that inputs and labels belong together, by the first row."""
    if not isinstance(first, Rows):
        raise DataError(f"{where}: rows() returned {type(first).__name__}, not Rows")
    inputs, labels = first.inputs, first.labels
    if inputs.dtype not in (np.int64, np.float32) or labels.dtype != np.int64:
        raise DataError(
            f"{where}: rows() returned inputs of {inputs.dtype} and labels of {labels.dtype}; give int64 tokens or "
            "float32 inputs, and int64 labels"
        )
    if len(inputs) != 1 or len(labels) != 1:
        raise DataError(f"{where}: rows([0]) returned {len(inputs)} inputs and {len(labels)} labels, not 1 each")
