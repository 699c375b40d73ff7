"""Log text for exceptions of a participant's own code."""

from __future__ import annotations

import importlib.util
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from atoll.client._session.work import timed
from atoll.client._telemetry.logs import USERS_CODE, TextLines
from atoll.client._telemetry.users_errors import note_shapes, users_frame, users_traceback
from atoll.client.errors import TrainerError
from atoll.wire.layout import Dtype, Layout, TensorSpec
from tests.client._telemetry.test_logs import record

LAYOUT = Layout((TensorSpec("coef", (1, 10), Dtype.FLOAT32), TensorSpec("intercept", (1,), Dtype.FLOAT32)))
CODE = "import numpy as np\n\ndef fit():\n    return np.linalg.inv(np.ones(4))\n"


@pytest.fixture
def fit(tmp_path: Path) -> Callable[[], object]:
    """A user's function, in a file of the user's, whose error is raised in an installed package."""
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    spec = importlib.util.spec_from_file_location("mine_users_errors", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[[], object] = module.fit
    return found


def raised_by(fit: Callable[[], object], layout: Layout | None = None) -> tuple[TrainerError, BaseException]:
    with pytest.raises(TrainerError) as caught:
        timed(fit, "fit", layout, logged=False)
    assert caught.value.__cause__ is not None
    return caught.value, caught.value.__cause__


def test_the_place_is_the_users_innermost_line(fit: Callable[[], object]) -> None:
    frame = users_frame(raised_by(fit)[1])
    assert (Path(frame.filename).name, frame.lineno, frame.line) == ("mine.py", 4, "return np.linalg.inv(np.ones(4))")


def test_a_traceback_begins_in_the_users_code(fit: Callable[[], object]) -> None:
    cause = raised_by(fit)[1]
    assert traceback.extract_tb(users_traceback(cause))[0].name == "fit"
    assert traceback.extract_tb(cause.__traceback__)[0].name == "timed"


def test_a_log_has_the_place_and_at_level_debug_the_traceback(fit: Callable[[], object]) -> None:
    cause = raised_by(fit)[1]
    made = record(msg="fit failed", exc_info=(type(cause), cause, cause.__traceback__), **USERS_CODE)
    what, where, more = TextLines(whole=False).format(made).splitlines()
    assert what.endswith("fit failed")
    assert where.endswith("mine.py, line 4, in fit: return np.linalg.inv(np.ones(4))")
    assert more == "  --log-level debug shows the whole traceback"
    assert "Traceback" in TextLines(whole=True).format(made)


def test_the_log_of_other_errors_is_whole() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        _ = 1 / 0
    made = record(exc_info=(caught.type, caught.value, caught.tb))
    assert "Traceback" in TextLines(whole=False).format(made)


@pytest.mark.parametrize(
    "work",
    [
        lambda: np.ones((5, 12)) @ np.ones((10, 1)),
        lambda: np.ones((5, 12)) - np.ones(10),
        lambda: np.ones(12).reshape(10, 1),
        lambda: (_ for _ in ()).throw(RuntimeError("mat1 and mat2 shapes cannot be multiplied (5x12 and 10x1)")),
        lambda: (_ for _ in ()).throw(ValueError("X has 12 features, but SGDClassifier is expecting 10 features")),
    ],
)
def test_an_error_about_shapes_names_those_of_the_model_and_what_to_do(work: Callable[[], object]) -> None:
    said = str(raised_by(work, LAYOUT)[0])
    assert "the model has coef [1, 10], intercept [1]; if the data here has another shape" in said
    assert said.endswith("the job needs another first model ([model] initial)")


def test_other_errors_name_no_shapes() -> None:
    assert str(raised_by(lambda: int("x"), LAYOUT)[0]).endswith("with base 10: 'x'")


def test_the_shapes_of_a_large_model_are_shortened() -> None:
    error = ValueError("bad shape")
    note_shapes(error, Layout(tuple(TensorSpec(f"w{number}", (2,), Dtype.FLOAT32) for number in range(9))))
    assert "w5 [2], 3 more tensors; if" in error.__notes__[0]
