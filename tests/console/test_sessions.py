"""One-time links and sessions, with a clock of the test's own."""

from __future__ import annotations

import pytest

from atoll.console.sessions import LINK_S, MAX_SESSIONS, SESSION_S, Access


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def access(clock: Clock) -> Access:
    return Access(clock)


def entered(access: Access) -> str:
    cookie = access.redeem(access.make_link())
    assert cookie is not None
    return cookie


def test_a_link_opens_one_session(access: Access) -> None:
    link = access.make_link()
    cookie = access.redeem(link)
    assert cookie is not None
    assert access.session(cookie) is not None
    assert access.redeem(link) is None


def test_a_wrong_token_opens_none_and_leaves_the_link_alive(access: Access) -> None:
    link = access.make_link()
    assert access.redeem("guess") is None
    assert access.redeem("\udcff") is None
    assert access.redeem(link) is not None


def test_a_newer_link_replaces_an_unused_one(access: Access) -> None:
    old, new = access.make_link(), access.make_link()
    assert access.redeem(old) is None
    assert access.redeem(new) is not None


def test_a_link_is_dead_after_its_time(access: Access, clock: Clock) -> None:
    link = access.make_link()
    clock.now_s += LINK_S
    assert access.redeem(link) is None


def test_a_session_ends_after_its_time(access: Access, clock: Clock) -> None:
    cookie = entered(access)
    found = access.session(cookie)
    assert found is not None
    assert access.is_open(found)
    clock.now_s += SESSION_S
    assert access.session(cookie) is None
    assert not access.is_open(found)


def test_a_session_that_has_signed_out_is_over(access: Access) -> None:
    cookie, other = entered(access), entered(access)
    found = access.session(cookie)
    assert found is not None
    access.end(found)
    assert access.session(cookie) is None
    assert not access.is_open(found)
    assert access.session(other) is not None


def test_sessions_are_bounded_and_the_oldest_makes_room(access: Access) -> None:
    cookies = [entered(access) for _ in range(MAX_SESSIONS + 1)]
    assert access.session(cookies[0]) is None
    assert all(access.session(cookie) for cookie in cookies[1:])


def test_sessions_have_tokens_of_their_own_and_keep_no_cookie(access: Access) -> None:
    cookies = [entered(access), entered(access)]
    found = [access.session(cookie) for cookie in cookies]
    assert len({one.form_token for one in found if one}) == 2
    assert not any(cookie in repr(found) for cookie in cookies)
