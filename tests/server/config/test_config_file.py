from __future__ import annotations

from pathlib import Path

import pytest

from atoll.server.config.config import ServerConfig
from atoll.server.config.config_file import MAX_FILE_BYTES, load_config
from atoll.server.errors import InvalidRequestError


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "server.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def problem_of(folder: Path, text: str | bytes, **options: object) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        load_config(options, written(folder, text))
    assert caught.value.detail.code == "server.config"
    return caught.value.detail.message


def test_without_a_file_the_options_are_all() -> None:
    assert load_config({"port": 9000}) == ServerConfig(port=9000)


def test_a_file_with_a_section(tmp_path: Path) -> None:
    path = written(tmp_path, 'port = 9000\ndata = "kept"\n[limits]\nreplies_per_task = 3\n')
    found = load_config({}, path)
    assert (found.port, found.data, found.limits.replies_per_task) == (9000, tmp_path / "kept", 3)
    assert found.limits.check_ins_per_minute == ServerConfig().limits.check_ins_per_minute


def test_options_take_precedence(tmp_path: Path) -> None:
    found = load_config({"port": 9001}, written(tmp_path, "port = 9000\nworkers = 2\n"))
    assert (found.port, found.workers) == (9001, 2)


def test_every_problem_is_named_with_its_line(tmp_path: Path) -> None:
    text = 'port = 70000\n\n[limits]\nconnections = 0\nreply_per_task = 3\nhandshake_s = "soon"\n'
    lines = problem_of(tmp_path, text).splitlines()
    file = tmp_path / "server.toml"
    assert len(lines) == 4
    assert any(line.startswith(f"{file}:1: port = '70000': ") for line in lines)
    assert any(line.startswith(f"{file}:4: limits.connections = '0': ") for line in lines)
    assert f"{file}:5: limits.reply_per_task = '3': no such key; did you mean \"replies_per_task\"?" in lines
    assert any(line.startswith(f"{file}:6: limits.handshake_s = 'soon': ") for line in lines)


def test_a_bad_option_is_named_as_one(tmp_path: Path) -> None:
    assert problem_of(tmp_path, "workers = 2\n", port=-1).startswith("--port '-1': ")


@pytest.mark.parametrize("url", ["postgresql://me:secret@db/atoll", "postgresql://me@db/atoll?password=secret"])
def test_a_password_in_the_url_of_the_database_is_not_shown(tmp_path: Path, url: str) -> None:
    problem = problem_of(tmp_path, f'[storage]\ndatabase = "{url}"\n')
    assert "holds a password" in problem
    assert "PGPASSWORD" in problem
    assert "secret" not in problem


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("blobs", "s3://me:secret@bucket/x"),
        ("blobs", "az://container/x?sig=secret"),
        ("blobs_endpoint", "https://me:secret@minio"),
        ("blobs_endpoint", "https://minio/?X-Amz-Security-Token=secret&x=y"),
    ],
)
def test_credentials_in_the_url_of_a_bucket_are_not_shown(tmp_path: Path, key: str, value: str) -> None:
    problem = problem_of(tmp_path, f'[storage]\n{key} = "{value}"\n')
    assert f"server.toml:2: storage.{key} = " in problem
    assert "AWS_ACCESS_KEY_ID" in problem
    assert "secret" not in problem


def test_a_place_that_is_none(tmp_path: Path) -> None:
    assert "server.toml:2: storage.blobs = 'bucket': " in problem_of(tmp_path, '[storage]\nblobs = "bucket"\n')
    assert "set `blobs` too" in problem_of(tmp_path, '[storage]\nblobs_region = "eu-west-1"\n')


@pytest.mark.parametrize("url", ["sqlite:///here", "mysql://x/y", "postgresql://db", "nonsense"])
def test_a_database_that_is_not_postgresql(tmp_path: Path, url: str) -> None:
    assert f"server.toml:2: storage.database = '{url}': " in problem_of(tmp_path, f'[storage]\ndatabase = "{url}"\n')


def test_what_does_not_go_together(tmp_path: Path) -> None:
    assert "plaintext is for loopback only" in problem_of(tmp_path, 'insecure = true\nhost = "0.0.0.0"\n')


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"port = ", "not TOML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"#" * (MAX_FILE_BYTES + 1), "at most"),
        (b"limits = 3\n", "limits = '3'"),
        (b"a = " + b"[" * 100_000, "not TOML"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, content: bytes, expected: str) -> None:
    assert expected in problem_of(tmp_path, content)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        load_config({}, tmp_path / "none.toml")
