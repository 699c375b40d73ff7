"""scikit-learn's bundled data sets: shapes, names, and the error if scikit-learn is missing."""

from __future__ import annotations

import sys
from typing import Any, get_args

import numpy as np
import pytest

from atoll.simulation import data
from atoll.simulation.data import DataError, MissingLibraryError
from atoll.simulation.data.loaders.scikit_learn import Name

SHAPES = {
    "breast_cancer": (569, 30, 2),
    "diabetes": (442, 10, 0),
    "digits": (1797, 64, 10),
    "iris": (150, 4, 3),
    "linnerud": (20, 3, 0),
    "wine": (178, 13, 3),
}


@pytest.mark.parametrize("name", get_args(Name))
def test_a_set_has_the_shape_that_is_documented(name: Any) -> None:
    found = data.load_sklearn(name)
    rows, columns, classes = SHAPES[name]
    assert found.inputs.shape == (rows, columns)
    assert found.inputs.dtype == np.float32
    assert (len(found), len(found.columns), len(found.classes)) == (rows, columns, classes)
    assert found.labels.dtype == (np.int64 if classes else np.float64)
    if classes:
        assert np.unique(found.labels).tolist() == list(range(classes))
    assert f"``{name}``" in (data.load_sklearn.__doc__ or "")


def test_an_unknown_set_names_those_that_there_are() -> None:
    name: Any = "mnist"
    with pytest.raises(
        DataError, match="'mnist' is not bundled with scikit-learn: give one of breast_cancer, diabetes"
    ):
        data.load_sklearn(name)


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingLibraryError, match=r'needs scikit-learn: pip install .*"\.\[demo\]"'):
        data.load_sklearn("iris")


def test_the_arrays_cannot_be_written_to_but_a_part_can() -> None:
    iris = data.load_sklearn("iris")
    with pytest.raises(ValueError, match="read-only"):
        iris.inputs[0] = 0
    part = iris.at(np.array([3, 1]))
    part.inputs[0] = 0
    assert part.labels.tolist() == iris.labels[[3, 1]].tolist()
    assert part.classes == iris.classes
