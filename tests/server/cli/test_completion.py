"""Shell completion of run names, by the real completion of click."""

from __future__ import annotations

from click.shell_completion import ShellComplete

from atoll.server.cli.completion import MOST
from atoll.server.cli.participants import participants
from atoll.server.cli.run import run
from tests.server.cli.conftest import Fake, summary


def offered(command: object, arguments: list[str], incomplete: str) -> list[str]:
    shell = ShellComplete(command, {}, "atoll", "_ATOLL_COMPLETE")  # type: ignore[arg-type]  # a click command
    return [item.value for item in shell.get_completions(arguments, incomplete)]


def connection(fake: Fake) -> list[str]:
    return ["--server", fake.address, "--insecure"]


def test_runs_are_offered_by_id_and_name(fake: Fake) -> None:
    own = summary()
    assert offered(run, ["show", *connection(fake)], "") == ["latest", own.run, own.name]
    assert offered(run, ["show", *connection(fake)], own.run[:2]) == [own.run]
    assert MOST >= 1


def test_a_server_that_is_away_offers_nothing() -> None:
    assert offered(run, ["show", "--server", "127.0.0.1:1", "--insecure"], "") == []
    assert offered(participants, ["revoke", "--server", "127.0.0.1:1", "--insecure"], "") == []
