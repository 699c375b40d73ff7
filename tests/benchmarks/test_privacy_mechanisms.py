import pytest

from benchmarks.__main__ import CASES
from benchmarks.options import Options
from benchmarks.privacy_mechanisms import banded_error, tree_error


def test_figures_are_those_known() -> None:
    """(rounds, separation, participations) of the tree and of banded matrices, computed apart from this code."""
    assert [round(tree_error(*one), 3) for one in ((256, 64, 4), (2000, 342, 6))] == [0.599, 0.250]
    assert [round(banded_error(16, *one), 3) for one in ((1024, 1024, 1), (2000, 342, 6))] == [0.319, 0.315]
    assert banded_error(64, 1024, 1024, 1) == pytest.approx(0.193, abs=0.0005)


def test_every_mechanism_is_there() -> None:
    names = {figure.name.partition(": ")[2] for figure in CASES["privacy-mechanisms"].run(Options(smoke=True))}
    assert names == {"tree", "16 bands", "32 bands", "64 bands", "BLT, 2 buffers"}
