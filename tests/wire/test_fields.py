import pytest

from atoll.wire.fields import submessage, varint
from atoll.wire.v1 import participation_pb2


@pytest.mark.parametrize("value", [1, 127, 128, 300, 2**14, 2**31, 2**63])
def test_a_varint_is_as_protobuf_writes_it(value: int) -> None:
    assert b"\x18" + varint(value) == participation_pb2.Hello(examples=value).SerializeToString()


def test_parts_are_one_submessage_under_one_tag() -> None:
    key = participation_pb2.RoundKey(run="r" * 200, round=3)
    rest = participation_pb2.Stop(reason="over").SerializeToString()
    stop = participation_pb2.Stop(key=key, reason="over")
    joined = submessage(participation_pb2.Stop.KEY_FIELD_NUMBER, key.SerializeToString()) + rest
    assert participation_pb2.Stop.FromString(joined) == stop
    whole = submessage(3, participation_pb2.Stop(key=key).SerializeToString(), rest)
    assert whole == participation_pb2.CheckInResponse(stop=stop).SerializeToString()
