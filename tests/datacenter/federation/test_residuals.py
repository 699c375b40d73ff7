"""Files of rounding errors: which are used, which outlive the process, which are removed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atoll.datacenter.federation.residuals import Floats, Residuals

SIZE, TAG = 6, "tag"


def after(residuals: Residuals) -> Floats:
    values = np.zeros(SIZE, np.float32)
    if residuals.upload:
        residuals.read(0, values)
    return values


def sent(residuals: Residuals, upload: str, value: float, *, whole: bool = True) -> None:
    """Set the errors of all elements, or of the first half, after an update."""
    residuals.begin(SIZE, whole=whole)
    residuals.put(0, np.full(SIZE if whole else SIZE // 2, value, np.float32))
    residuals.keep(upload)


@pytest.fixture(params=[True, False], ids=["kept", "temporary"])
def residuals(request: pytest.FixtureRequest, tmp_path: Path) -> Residuals:
    return Residuals(tmp_path / "kept" if request.param else None, 3, tmp_path)


def test_errors_are_those_after_the_update_that_is_named(residuals: Residuals) -> None:
    residuals.adopt("", TAG)
    assert not after(residuals).any()
    sent(residuals, "one", 1.0)
    assert not after(residuals).any(), "not yet: it may not count"
    residuals.adopt("one", TAG)
    sent(residuals, "two", 2.0)
    residuals.adopt("one", TAG)
    assert (after(residuals) == 1).all(), "the second did not count"
    sent(residuals, "again", 3.0, whole=False)
    residuals.adopt("again", TAG)
    assert after(residuals).tolist() == [3, 3, 3, 1, 1, 1]
    residuals.adopt("unknown", TAG)
    assert (residuals.upload, bool(after(residuals).any())) == ("", False)


def test_errors_of_another_layout_of_ranks_are_let_go(residuals: Residuals) -> None:
    residuals.adopt("", TAG)
    sent(residuals, "one", 1.0)
    residuals.adopt("one", "other")
    assert not after(residuals).any()


def test_a_new_process_finds_those_of_both_updates_that_may_be_needed(tmp_path: Path) -> None:
    first = Residuals(tmp_path, 3, tmp_path)
    first.adopt("", TAG)
    for number in range(1, 5):
        sent(first, str(number), float(number))
        first.adopt(str(number), TAG)
    first.close()
    second = Residuals(tmp_path, 3, tmp_path)
    second.adopt("4", TAG)
    assert (after(second) == 4).all()
    second.adopt("3", TAG)
    assert (after(second) == 3).all()
    second.adopt("2", TAG)
    assert not after(second).any()
    second.close()
    assert len(list(tmp_path.iterdir())) == 2


def test_what_a_crash_left_half_written_is_not_used(tmp_path: Path) -> None:
    first = Residuals(tmp_path, 3, tmp_path)
    first.adopt("", TAG)
    sent(first, "one", 1.0)
    first.adopt("one", TAG)
    first.begin(SIZE, whole=True)
    first.put(0, np.full(SIZE, 9.0, np.float32))
    second = Residuals(tmp_path, 3, tmp_path)
    second.adopt("one", TAG)
    assert (after(second) == 1).all()
    sent(second, "two", 2.0, whole=False)
    second.adopt("two", TAG)
    assert after(second).tolist() == [2, 2, 2, 1, 1, 1]
    first.close()
    second.close()


def test_temporary_files_have_no_names(tmp_path: Path) -> None:
    residuals = Residuals(None, 0, tmp_path)
    residuals.adopt("", TAG)
    sent(residuals, "one", 1.0)
    assert list(tmp_path.iterdir()) == []
    residuals.close()


def test_a_file_that_ends_early_is_an_error(tmp_path: Path) -> None:
    first = Residuals(tmp_path, 3, tmp_path)
    first.adopt("", TAG)
    sent(first, "one", 1.0)
    first.close()
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    second = Residuals(tmp_path, 3, tmp_path)
    second.adopt("one", TAG)
    with pytest.raises(OSError, match="of update one end early"):
        after(second)
    second.close()
