import inspect

import pytest

from atoll.server import errors
from atoll.wire.status import Fault

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
TREE = [kind for kind in CLASSES if issubclass(kind, Exception)]


@pytest.mark.parametrize("kind", TREE)
def test_each_error_is_drawn_in_the_tree(kind: type) -> None:
    assert errors.__doc__ is not None
    assert f" {kind.__name__} " in errors.__doc__.replace("\n", " ")
    assert issubclass(kind, errors.ServerError)


def test_an_error_says_whose_fault_it_was_and_what_to_do_next() -> None:
    error = errors.LimitExceededError("upload.bytes", "too many", "send fewer", retry_after_s=1.5)
    assert str(error) == "too many"
    assert (error.detail.code, error.detail.fault, error.detail.remedy) == ("upload.bytes", Fault.CALLER, "send fewer")
    assert error.detail.retry_after_s == 1.5


@pytest.mark.parametrize("kind", TREE)
def test_faults(kind: type[errors.ServerError]) -> None:
    expected = Fault.SERVER
    if issubclass(kind, errors.CallerError):
        expected = Fault.CALLER
    elif kind is errors.TooLateError:
        expected = Fault.TIMING
    assert kind("a.b", "message").detail.fault is expected
