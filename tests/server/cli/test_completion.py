"""Shell completion of run names, by the real completion of click."""

from __future__ import annotations

from click.shell_completion import ShellComplete

from atoll.server.cli.completion import MOST
from atoll.server.cli.participants import participants
from atoll.server.cli.run import run
from tests.server.cli.conftest import Fake, a_round, summary


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


def test_models_and_metrics_of_the_run_are_offered(fake: Fake) -> None:
    fake.control.rounds = [a_round(number, metrics={"eval/loss": 0.5, "train/loss": 1.0}) for number in range(2)]
    asked = ["model", *connection(fake), summary().run]
    released = summary().rounds_released
    assert offered(run, [*asked, "--round"], "") == [str(number) for number in range(released, -1, -1)]
    assert offered(run, [*asked, "--round"], "0") == ["0"]
    assert offered(run, [*asked, "--best", "--metric"], "ev") == ["eval/loss"]
    assert offered(run, ["export", *connection(fake), summary().run, "--data-statistics"], "la") == ["latest"]


def test_participants_are_offered_by_id_and_organisation(fake: Fake) -> None:
    ids = offered(participants, ["revoke", *connection(fake)], "")
    assert ids, "the fake server has participants"
    assert offered(participants, ["revoke", *connection(fake)], ids[0][:4]) == [ids[0]]
