"""Sequences from a map-style dataset, such as those of ``torch.utils.data`` and Hugging Face's ``datasets``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import blake3
import numpy as np
from numpy.typing import NDArray

from atoll.datacenter.data.packing import Ints, Rows
from atoll.datacenter.errors import DataError


class MapStyle(Protocol):
    """A dataset whose items can be read in any order."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any:
        """Return ``(input, label)``, or a mapping with ``input_ids`` and ``labels``."""
        ...


class DatasetSequences:
    """Reads items one by one, in the thread that reads ahead.

    Inputs become int64 or float32, labels int64; all items have one shape.

    Args:
        dataset: its items must not change: the same index gives the same item on every rank.
        name: for errors. A digest of the name, the number of items, and the first and last items identifies the data
            when a checkpoint is resumed.

    Attributes:
        item: shape of an input, and the kind of its numbers: "i" for integers, "f" for floats.

    Raises:
        DataError: if it is empty or not map-style, or its items are not pairs.
    """

    def __init__(self, dataset: MapStyle, name: str) -> None:
        self._dataset, self.name = dataset, name
        if not all(hasattr(dataset, needed) for needed in ("__len__", "__getitem__")):
            raise DataError(
                f"{name} is not map-style: give a dataset with __len__ and __getitem__, such as a list of items, or "
                "the dataset of a DataLoader"
            )
        if not len(dataset):
            raise DataError(f"{name} is empty")
        ends = self.rows(np.array([0, len(dataset) - 1], np.int64))
        seen = f"{name}/{len(dataset)}/{ends.inputs.shape}/".encode() + ends.inputs.tobytes() + ends.labels.tobytes()
        self.item: tuple[tuple[int, ...], str] = (ends.inputs.shape[1:], ends.inputs.dtype.kind)
        self.digest = blake3.blake3(seen).hexdigest()

    def __len__(self) -> int:
        return len(self._dataset)

    def rows(self, indices: Ints) -> Rows:
        """Return the items with these indices (int64 [b]), in that order.

        Raises:
            DataError: if an item is not a pair, or its shape differs from the others; names its index.
        """
        pairs = [self._pair(int(index)) for index in indices]
        for index, (inputs, labels) in zip(indices, pairs, strict=True):
            if (inputs.shape, labels.shape) != (pairs[0][0].shape, pairs[0][1].shape):
                raise DataError(
                    f"{self.name}[{index}] has an input of shape {inputs.shape} and labels of {labels.shape}, "
                    f"{self.name}[{indices[0]}] of {pairs[0][0].shape} and {pairs[0][1].shape}: pad or cut them alike"
                )
        return Rows(np.stack([inputs for inputs, _ in pairs]), np.stack([labels for _, labels in pairs]))

    def _pair(self, index: int) -> tuple[Any, Ints]:
        item = self._dataset[index]
        if isinstance(item, Mapping) and {"input_ids", "labels"} <= item.keys():
            item = item["input_ids"], item["labels"]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(
                f"{self.name}[{index}] is {_described(item)}: return (input, label), or a mapping with input_ids and "
                "labels (the next tokens)"
            )
        inputs, labels = (np.asarray(part) for part in item)
        if labels.dtype.kind not in "iub":
            raise DataError(f"{self.name}[{index}] has labels of {labels.dtype}: return integers")
        return _narrowed(inputs), labels.astype(np.int64)


def _described(item: object) -> str:
    if isinstance(item, Mapping):
        return f"a mapping with the keys {', '.join(map(str, item)) or '(none)'}"
    return f"{type(item).__name__} of {len(item)}" if isinstance(item, tuple | list) else type(item).__name__


def _narrowed(inputs: NDArray[Any]) -> NDArray[np.int64] | NDArray[np.float32]:
    """Tokens stay integers; everything else becomes float32."""
    return inputs.astype(np.int64) if inputs.dtype.kind in "iub" else inputs.astype(np.float32)
