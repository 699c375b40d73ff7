from collections.abc import Iterator

from atoll.server.ingest.arrivals import REMEMBERED, Arrivals
from atoll.server.ingest.upload_ref import UploadRef


def upload(number: int) -> UploadRef:
    return UploadRef("r1", 0, 0, "pa", f"{number:032x}")


def clock() -> Iterator[float]:
    return iter(range(1, 10**9))


def test_the_first_stream_of_an_upload_counts() -> None:
    ticks = clock()
    arrivals = Arrivals(lambda: next(ticks))
    arrivals.began(upload(1))
    arrivals.began(upload(1))
    assert arrivals.first_byte_at(upload(1)) == 1.0
    assert arrivals.first_byte_at(upload(2)) == 0.0


def test_the_oldest_are_forgotten() -> None:
    arrivals = Arrivals(lambda: 5.0)
    for number in range(REMEMBERED + 1):
        arrivals.began(upload(number))
    assert arrivals.first_byte_at(upload(0)) == 0.0
    assert arrivals.first_byte_at(upload(1)) == arrivals.first_byte_at(upload(REMEMBERED)) == 5.0


def test_a_reported_upload_is_forgotten() -> None:
    arrivals = Arrivals(lambda: 5.0)
    arrivals.began(upload(1))
    arrivals.reported(upload(1))
    arrivals.reported(upload(2))
    assert arrivals.first_byte_at(upload(1)) == 0.0
