from itertools import combinations

import pytest

from atoll.server.stores.row_checksums import checksum_of
from atoll.server.stores.row_conversion import Checksummed
from tests.server.stores.samples import run
from tests.server.stores.test_models import model

ALIKE = [(), (None,), ("",), (b"",), (0,), (0.0,), ("", ""), ("a", "b"), ("ab",), ("ab", ""), ("1",), (1,), (1.0,)]


@pytest.mark.parametrize(("one", "other"), list(combinations(ALIKE, 2)))
def test_different_values_with_similar_text_have_different_checksums(
    one: tuple[str | bytes | float | None, ...], other: tuple[str | bytes | float | None, ...]
) -> None:
    assert checksum_of(*one) != checksum_of(*other)


def test_a_zero_is_a_zero() -> None:
    assert checksum_of(-0.0) == checksum_of(0.0)


@pytest.mark.parametrize("record", [run(), model(0, None), model(1, 0)])
def test_a_checksum_has_128_bits(record: Checksummed) -> None:
    assert len(bytes.fromhex(record.checksum)) == 16
