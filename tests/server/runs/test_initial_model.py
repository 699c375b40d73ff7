from pathlib import Path

import numpy as np
import pytest

from atoll.server.errors import InvalidRequestError
from atoll.server.runs import initial_model
from atoll.server.runs.initial_model import check_finite
from atoll.server.stores import DirectoryBlobStore
from atoll.wire.layout import Dtype, Layout, TensorSpec

LAYOUT = Layout(
    (
        TensorSpec("half", (3,), Dtype.FLOAT16),
        TensorSpec("one", (700,), Dtype.FLOAT32),
        TensorSpec("two", (700,), Dtype.FLOAT32),
        TensorSpec("brain", (5,), Dtype.BFLOAT16),
        TensorSpec("wide", (400,), Dtype.FLOAT64),
    )
)


def stored(store: DirectoryBlobStore, tensor: str = "", place: int = 0) -> str:
    """A model whose tensor has a NaN at one index, or none."""
    parts = []
    for spec in LAYOUT.tensors:
        values = np.full(spec.size, 1, spec.dtype.storage)
        if spec.name == tensor:
            values[place] = 0x7FC0 if spec.dtype is Dtype.BFLOAT16 else np.nan
        parts.append(values.tobytes())
    with store.create(chunk_bytes=1024) as writer:
        writer.write(b"".join(parts))
        return writer.commit().name


@pytest.mark.parametrize("block", [64, 4096, 16 << 20])
@pytest.mark.parametrize(
    ("tensor", "place"), [("half", 2), ("one", 0), ("one", 699), ("two", 0), ("brain", 4), ("wide", 399)]
)
def test_the_tensor_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, tensor: str, place: int
) -> None:
    monkeypatch.setattr(initial_model, "BLOCK_BYTES", block)
    store = DirectoryBlobStore(tmp_path)
    with pytest.raises(InvalidRequestError, match=repr(tensor)):
        check_finite(store, stored(store, tensor, place), LAYOUT)
    check_finite(store, stored(store), LAYOUT)
