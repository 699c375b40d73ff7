"""Arrays as a model: one conversion for the operator, the simulation and the client's tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch

from atoll.client.testing import model_of
from atoll.formats.arrays import DTYPES, NamedArrays
from atoll.operator import BadInputError, models
from atoll.simulation.errors import SetupError
from atoll.simulation.initial import initial_model
from atoll.wire.encoding import bfloat16_to_float32
from atoll.wire.errors import LayoutError
from atoll.wire.layout import Dtype, Layout

Arrays = dict[str, npt.NDArray[Any]]
Take = Callable[[Arrays], tuple[Layout, bytes]]
BITS = np.array([0x3F80, 0xC000], np.uint16)
"""1 and -2 in bfloat16."""


def submitted(given: Arrays) -> tuple[Layout, bytes]:
    with models.opened(given) as content:
        return content.layout, bytes(content.blob)


def simulated(given: Arrays) -> tuple[Layout, bytes]:
    found = initial_model(given)
    return found.layout, b"".join(found.pieces())


def for_tests(given: Arrays) -> tuple[Layout, bytes]:
    model = model_of(given)
    return model.layout, b"".join(model[name].tobytes() for name in model)


TAKERS: dict[Take, type[Exception]] = {submitted: BadInputError, simulated: SetupError, for_tests: LayoutError}
"""What takes arrays, and the error that it refuses some with."""


@pytest.mark.parametrize("take", TAKERS)
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("name", ["float32", "float64", "float16"])
def test_values_are_kept_in_either_byte_order(take: Take, order: Literal["<", ">"], name: str) -> None:
    values = np.arange(6, dtype=name).reshape(2, 3)
    layout, found = take({"w": values.astype(values.dtype.newbyteorder(order)).T, "b": np.zeros((), np.float32)})
    assert [(spec.shape, spec.dtype.value) for spec in layout.tensors] == [((3, 2), name), ((), "float32")]
    np.testing.assert_array_equal(np.frombuffer(found[: values.nbytes], Dtype(name).storage).reshape(3, 2), values.T)


@pytest.mark.parametrize("take", TAKERS)
@pytest.mark.parametrize("order", ["<", ">"])
def test_bfloat16_as_its_bits(take: Take, order: Literal["<", ">"]) -> None:
    layout, found = take({"w": BITS.astype(f"{order}u2")})
    assert layout.tensors[0].dtype is Dtype.BFLOAT16
    assert list(bfloat16_to_float32(np.frombuffer(found, "<u2"))) == [1.0, -2.0]


@pytest.mark.parametrize("take", TAKERS)
def test_bfloat16_of_ml_dtypes(take: Take) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    given = np.array([1.0, -2.0], ml_dtypes.bfloat16)
    assert take({"w": given}) == take({"w": BITS})


@pytest.mark.parametrize("take", TAKERS)
def test_other_element_types_are_refused_by_name(take: Take) -> None:
    with pytest.raises(TAKERS[take], match=f"array 'n' has element type int64; allowed are {', '.join(DTYPES)} "):
        take({"w": np.zeros(2, np.float32), "n": np.zeros(3, np.int64)})


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"w": torch.zeros(2, requires_grad=True)}, "'w' cannot be read as an array: Can't call numpy"),
        ({"w": [[1.0], [1.0, 2.0]]}, "'w' cannot be read as an array: .*inhomogeneous"),
        ({0: np.zeros(2, np.float32)}, "the name 0 of an array is not a string"),
        ({"w": np.zeros((0, 2), np.float32)}, "dimension below 1"),
        ({}, "1 to 65536 tensors"),
    ],
)
def test_what_is_no_model_is_named(given: Any, match: str) -> None:
    with pytest.raises(LayoutError, match=match):
        NamedArrays.of(given)


def test_arrays_are_not_copied() -> None:
    given = np.zeros((2, 3), np.float32)
    (piece,) = NamedArrays.of({"w": given}).pieces()
    given[0, 0] = 5.0
    assert np.frombuffer(piece, np.float32)[0] == 5.0
