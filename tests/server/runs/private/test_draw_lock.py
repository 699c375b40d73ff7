"""When a run may draw."""

from atoll.server.runs.private.draw_lock import DrawLock


def turns(changes: list[str] | None = None, secret_round: str = "") -> DrawLock:
    heard = [] if changes is None else changes
    return DrawLock(lambda run: "" if run == secret_round else secret_round, lambda: heard.append("changed"))


def test_runs_without_a_secret_draw_at_once() -> None:
    order = turns()
    order.begin("a", secret=False)
    assert order.may_begin("b", secret=False)


def test_a_secret_draw_and_another_are_never_made_at_once() -> None:
    for first, second in ((True, True), (True, False), (False, True)):
        changes: list[str] = []
        order = turns(changes)
        order.begin("a", secret=first)
        assert order.may_begin("a", secret=first)
        assert not order.may_begin("b", secret=second)
        order.end("a")
        assert order.may_begin("b", secret=second)
        assert changes == ["changed"]


def test_no_run_draws_while_the_members_of_a_secret_draw_are_at_work() -> None:
    order = turns(secret_round="a")
    assert order.may_begin("a", secret=True)
    for secret in (False, True):
        assert not order.may_begin("b", secret=secret)
    assert "private run a is in a round" in order.waits_for("b")
    assert order.waits_for("a") == ""


def test_the_end_of_nothing_is_no_change() -> None:
    changes: list[str] = []
    turns(changes).end("a")
    assert changes == []
