"""docs/protocol.md lists every error code that the server can send, and no other."""

import pytest

from tests.docs import error_codes


def test_the_table_of_error_codes_is_what_the_source_says() -> None:
    assert error_codes.PAGE.read_text() == error_codes.page_with(error_codes.table()), (
        "run `python -m tests.docs.error_codes`"
    )


def test_every_code_is_written_out_where_it_is_raised() -> None:
    assert error_codes.unresolved() == []


@pytest.mark.parametrize(
    "code", ["request.bytes", "request.metadata", "wire.message", "token.used", "certificate.expired", "run.missing"]
)
def test_codes_of_every_kind_of_place_are_found(code: str) -> None:
    assert code in {entry.code for entry in error_codes.entries()}


def test_every_code_has_a_meaning() -> None:
    assert [entry.code for entry in error_codes.entries() if not entry.meaning] == []
