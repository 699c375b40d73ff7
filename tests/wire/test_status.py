from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.wire.status import ERROR_TRAILER, ErrorDetail, Fault, Recovery, detail_from_trailers
from atoll.wire.v1 import errors_pb2

details = st.builds(
    ErrorDetail,
    code=st.text(max_size=20),
    fault=st.sampled_from(Fault),
    message=st.text(max_size=50),
    remedy=st.text(max_size=50),
    retry_after_s=st.none() | st.floats(0.001, 1e6),
    recovery=st.sampled_from(Recovery),
)


@given(details)
def test_details_survive_the_trailer(detail: ErrorDetail) -> None:
    assert detail_from_trailers([("other", "x"), detail.trailer()]) == detail


def test_the_trailer_is_binary() -> None:
    assert ERROR_TRAILER.endswith("-bin")


@pytest.mark.parametrize("trailers", [[], [("other", b"x")], [(ERROR_TRAILER, "text")], [(ERROR_TRAILER, b"\xff")]])
def test_no_detail_is_none(trailers: list[tuple[str, str | bytes]]) -> None:
    assert detail_from_trailers(trailers) is None


def test_an_unknown_fault_is_the_servers() -> None:
    message = errors_pb2.ErrorDetail(code="x", message="m").SerializeToString()
    found = detail_from_trailers([(ERROR_TRAILER, message)])
    assert found is not None
    assert found.fault is Fault.SERVER


@pytest.mark.parametrize(
    ("fault", "retry_after_s", "recovery"),
    [
        (errors_pb2.FAULT_CALLER, 0.0, Recovery.CHANGE),
        (errors_pb2.FAULT_CALLER, 2.0, Recovery.REPEAT),
        (errors_pb2.FAULT_SERVER, 0.0, Recovery.REPEAT),
        (errors_pb2.FAULT_TIMING, 0.0, Recovery.NEXT_TASK),
        (errors_pb2.FAULT_TIMING, 2.0, Recovery.NEXT_TASK),
    ],
)
@pytest.mark.parametrize("number", [0, 99])
def test_a_recovery_that_is_not_said_or_not_known_goes_by_the_fault(
    fault: errors_pb2.Fault.ValueType, retry_after_s: float, recovery: Recovery, number: int
) -> None:
    message = errors_pb2.ErrorDetail(code="x", fault=fault, retry_after_s=retry_after_s)
    message.recovery = errors_pb2.Recovery.ValueType(number)
    found = detail_from_trailers([(ERROR_TRAILER, message.SerializeToString())])
    assert found is not None
    assert found.recovery is recovery


def test_text_names_the_remedy() -> None:
    assert str(ErrorDetail("c", Fault.CALLER, "too large", "send less")) == "too large (send less)"
    assert str(ErrorDetail("c", Fault.CALLER, "too large")) == "too large"
