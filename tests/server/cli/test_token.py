from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from click.testing import CliRunner

from atoll.operator import Operator, UnreachableError
from atoll.server.cli.token import token

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result


def test_new_prints_a_token_and_nothing_else_on_stdout(fake: Any, invoke: Callable[..., Result]) -> None:
    result = invoke(token, "new", "--organisation", "lab", "--kind", "silo", "--expires", "90m")
    assert result.exit_code == 0
    assert result.stdout == "atoll-join-1.0\n"
    (asked,) = fake.control.asked
    assert (asked.organisation, asked.kind, asked.lifetime_s, asked.count) == ("lab", 2, 5400.0, 1)


def test_tokens_go_to_a_private_file(invoke: Callable[..., Result], tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    result = invoke(token, "new", "--count", "2", "-o", str(path))
    assert result.exit_code == 0
    assert path.read_text() == "atoll-join-1.0\natoll-join-1.1\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "atoll-join" not in result.output


def test_a_file_is_never_written_over(fake: Any, invoke: Callable[..., Result], tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("precious")
    result = invoke(token, "new", "-o", str(path))
    assert (result.exit_code, path.read_text()) == (2, "precious")
    assert fake.control.asked == [], "a token was spent although there is nowhere to put it"


def test_no_empty_file_is_left_when_the_server_refuses(invoke: Callable[..., Result], tmp_path: Path) -> None:
    result = invoke(token, "new", "--organisation", "forbidden", "-o", str(tmp_path / "tokens"))
    assert result.exit_code == 4
    assert "not yours\nWhat to do: ask" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_while_the_server_is_asked_the_file_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "tokens", []

    def asked(*_: object, **__: object) -> NoReturn:
        seen.append(path.exists())
        raise UnreachableError("the server is away")

    monkeypatch.setattr(Operator, "make_tokens", asked)
    result = CliRunner().invoke(token, ["new", "--insecure", "-o", str(path)])
    assert (result.exit_code, seen, list(tmp_path.iterdir())) == (3, [False], [])


@pytest.mark.parametrize("text", ["", "5", "h", "-3h", "0s", "3w", "1e3s"])
def test_a_lifetime_that_cannot_be_is_refused(text: str) -> None:
    result = CliRunner().invoke(token, ["new", "--expires", text])
    assert result.exit_code == 2
    assert "for example 24h" in result.stderr


def test_list_shows_tokens_without_secrets(invoke: Callable[..., Result]) -> None:
    result = invoke(token, "list")
    assert result.exit_code == 0
    assert "t1" in result.stdout
    assert "lab" in result.stdout
    assert "t2" in result.stdout, "the second page"


def test_tokens_are_voided_by_their_ids_or_their_maker(fake: Any, invoke: Callable[..., Result]) -> None:
    assert invoke(token, "void", "t1").stdout == "1 unused join token voided\n"
    assert invoke(token, "void", "--made-by", "oidc:dora").stdout == "2 unused join tokens voided\n"
    assert [(list(asked.token_ids), asked.created_by) for asked in fake.control.asked] == [
        (["t1"], ""),
        ([], "oidc:dora"),
    ]


@pytest.mark.parametrize("arguments", [(), ("t1", "--made-by", "dora")])
def test_which_tokens_are_void_is_said_in_one_way(
    fake: Any, invoke: Callable[..., Result], arguments: tuple[str, ...]
) -> None:
    result = invoke(token, "void", *arguments)
    assert (result.exit_code, fake.control.asked) == (2, [])
