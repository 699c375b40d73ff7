import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.server.errors import InvalidRequestError
from atoll.server.rpc import tensor_count
from atoll.server.rpc.tensor_count import check_tensor_count
from atoll.wire.v1 import control_pb2, tensors_pb2


def request(tensors: int) -> bytes:
    layout = tensors_pb2.Layout(tensors=[tensors_pb2.TensorSpec(name="w", shape=[1, 300]) for _ in range(tensors)])
    return control_pb2.SubmitRunRequest(
        job_toml=b"x" * 300, file_name="job.toml", layout=layout, initial_blob="a" * 64
    ).SerializeToString()


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_count, "MAX_TENSORS", 5)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_maximum_number_of_tensors_is_accepted(count: int) -> None:
    check_tensor_count(request(count))


@pytest.mark.parametrize("raw", [request(6), request(3) + request(3), b"\x1a\x0c" + b"\x0a\x00" * 6])
def test_more_are_not(raw: bytes) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_tensor_count(raw)
    assert caught.value.detail.code == "job.tensors"


def test_an_endless_shape_is_refused() -> None:
    layout = tensors_pb2.Layout(tensors=[tensors_pb2.TensorSpec(name="w", shape=[2**63] * 16)])
    check_tensor_count(control_pb2.SubmitRunRequest(layout=layout).SerializeToString())
    layout.tensors[0].shape.extend([2**63] * 100)
    with pytest.raises(InvalidRequestError, match="tensor 1 is described in"):
        check_tensor_count(control_pb2.SubmitRunRequest(layout=layout).SerializeToString())


@given(st.binary(max_size=300))
def test_anything_else_is_left_to_the_parser(raw: bytes) -> None:
    try:
        check_tensor_count(raw)
    except InvalidRequestError:
        assert raw.count(b"\x0a") > 5 or len(raw) > tensor_count.MAX_TENSOR_BYTES
