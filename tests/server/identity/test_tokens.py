import dataclasses

import pytest

from atoll.server.errors import InvalidRequestError
from atoll.server.identity import (
    NameFormatError,
    ParticipantKind,
    TokenError,
    TokenExpiredError,
    TokenRecord,
    TokenScopeError,
    TokenUnknownError,
    TokenUsedError,
    mint,
    verify,
)

NOW = 1000.0
MINTED = mint("acme", ParticipantKind.EDGE, created_by="alice", now=NOW, lifetime_s=60.0)
RECORD = MINTED.record
SPENT = dataclasses.replace(RECORD, used_at=NOW + 1, used_by="pabcdefghijkl", used_key="aa" * 32)


def test_a_fresh_token_admits() -> None:
    found = verify(RECORD, MINTED.secret, now=NOW + 59.9, organisation="acme", kind=ParticipantKind.EDGE)
    assert found is RECORD


def test_the_record_does_not_hold_the_secret() -> None:
    assert MINTED.secret not in repr(RECORD)
    assert MINTED.secret not in repr(MINTED)


def test_tokens_differ() -> None:
    other = mint("acme", ParticipantKind.EDGE, created_by="alice", now=NOW)
    assert (other.secret, other.record.id) != (MINTED.secret, RECORD.id)


@pytest.mark.parametrize(
    ("record", "secret", "error"),
    [
        (None, MINTED.secret, TokenUnknownError),
        (RECORD, "", TokenUnknownError),
        (RECORD, MINTED.secret + "x", TokenUnknownError),
        (RECORD, "\ud800", TokenUnknownError),
        (dataclasses.replace(RECORD, id="tother"), MINTED.secret, TokenUnknownError),
        (SPENT, MINTED.secret, TokenUsedError),
    ],
)
def test_what_does_not_admit(record: TokenRecord | None, secret: str, error: type[TokenError]) -> None:
    with pytest.raises(error) as refused:
        verify(record, secret, now=NOW + 2)
    assert refused.value.detail.remedy
    assert refused.value.detail.code == error.code


def test_an_expired_token() -> None:
    with pytest.raises(TokenExpiredError, match=RECORD.id):
        verify(RECORD, MINTED.secret, now=NOW + 60.0)


def test_a_token_of_another_scope() -> None:
    with pytest.raises(TokenScopeError, match="organisation 'acme', not 'other'"):
        verify(RECORD, MINTED.secret, now=NOW, organisation="other")
    with pytest.raises(TokenScopeError, match="kind edge, not silo"):
        verify(RECORD, MINTED.secret, now=NOW, kind=ParticipantKind.SILO)


def test_a_wrong_secret_learns_nothing_of_the_token() -> None:
    with pytest.raises(TokenUnknownError):
        verify(SPENT, "guess", now=NOW + 100, organisation="other")


def test_the_key_that_spent_it_may_ask_again_until_it_expires() -> None:
    assert verify(SPENT, MINTED.secret, now=NOW + 2, key="aa" * 32) is SPENT
    with pytest.raises(TokenUsedError):
        verify(SPENT, MINTED.secret, now=NOW + 2, key="bb" * 32)
    with pytest.raises(TokenExpiredError):
        verify(SPENT, MINTED.secret, now=NOW + 61, key="aa" * 32)


@pytest.mark.parametrize("organisation", ["", "Acme", "a b", "a" * 64, "a\n"])
def test_bad_organisations(organisation: str) -> None:
    with pytest.raises(NameFormatError, match="organisation"):
        mint(organisation, ParticipantKind.EDGE, created_by="alice", now=NOW)


@pytest.mark.parametrize("lifetime_s", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_bad_lifetimes(lifetime_s: float) -> None:
    with pytest.raises(InvalidRequestError, match="lifetime_s"):
        mint("acme", ParticipantKind.EDGE, created_by="alice", now=NOW, lifetime_s=lifetime_s)
