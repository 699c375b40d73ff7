"""``atoll silo tokens``, as typed on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atoll.client.cli.app import run_cli
from atoll.datacenter.data import tokenise
from atoll.datacenter.data.token_file import open_token_file
from atoll.datacenter.data.tokenizer import HuggingFaceTokenizer
from tests.datacenter.data.texts import TEXT, text_folder, tokenizer_json


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    text_folder(tmp_path / "text")
    tokenizer_json(tmp_path)
    return tmp_path


def run(*arguments: str | Path) -> int:
    return run_cli(["silo", "tokens", *map(str, arguments)])


def test_files_become_documents_in_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder / "text", "--out", folder / "a.tokens") == 0
    assert "28,317" in capsys.readouterr().out
    found = open_token_file(folder / "a.tokens")
    assert (len(found), found.vocab) == (47, 256)
    first, last = (bytes(found.tokens[found.offsets[at] : found.offsets[at + 1]].tolist()) for at in (0, 46))
    assert first == b"document 0: "
    assert last == (folder / "text" / "part1" / "5.txt").read_bytes()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_tokenizer_with_an_end_token_is_told_as_json(
    folder: Path, threads: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenise, "PIECE_BYTES", 500)
    out = folder / "a.tokens"
    options = ("--tokenizer", folder / "tokenizer.json", "--end-token", "<|end|>", "--threads", str(threads), "--json")
    assert run(folder / "text", "--out", out, *options) == 0
    answer = json.loads(capsys.readouterr().out)["files"][0]
    found, tokenizer = open_token_file(out), HuggingFaceTokenizer(folder / "tokenizer.json")
    assert (answer["tokens"], answer["documents"], answer["vocab"]) == (found.tokens.size, 47, 280)
    assert (answer["digest"], answer["tokenizer"]) == (found.digest, tokenizer.digest)
    assert [int(found.tokens[end - 1]) for end in found.offsets[1:]] == [0] * 47
    text = f"document 2: {TEXT * 2}".encode()
    assert found.tokens[found.offsets[2] : found.offsets[3] - 1].tolist() == tokenizer.encode(text).tolist()


def test_an_existing_file_is_only_replaced_when_forced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "a.tokens"
    out.write_bytes(b"precious")
    assert run(folder / "text", "--out", out) == 2
    assert "already exists: give another --out, or --force" in capsys.readouterr().err
    assert out.read_bytes() == b"precious"
    assert run(folder / "text", "--out", out, "--force") == 0
    assert open_token_file(out).tokens.size == 28_317


def test_token_files_are_checked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "a.tokens"
    run(folder / "text", "--out", out)
    assert run("--check", out, "--json") == 0
    damaged = bytearray(out.read_bytes())
    damaged[1000] ^= 1
    out.write_bytes(damaged)
    capsys.readouterr()
    assert run("--check", out) == 2
    assert "a.tokens has other contents" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("text",), "give the file to write with --out FILE"),
        (("missing", "--out", "a"), "missing: no such file or folder"),
        (("text", "--out", "a", "--tokenizer", "missing.json"), "missing.json: cannot read a tokenizer"),
        (("text", "--out", "a", "--end-token", "<eos>"), "the byte tokenizer has none"),
        (("text", "--out", "a", "--tokenizer", "tokenizer.json", "--end-token", "<eos>"), "has no token '<eos>'"),
        (("text", "--out", "nowhere/a"), "nowhere/a: cannot be written"),
        (("text", "--check", "--out", "a"), "--check writes nothing"),
        (("text/more.jsonl", "--check"), "more.jsonl is not a token file"),
    ],
)
def test_what_cannot_be_done_is_said(
    folder: Path,
    arguments: tuple[str, ...],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    assert run(*arguments) == 2
    assert says in capsys.readouterr().err
    assert not (folder / "a").exists()


def test_text_that_breaks_off_in_the_middle_leaves_no_file(folder: Path) -> None:
    (folder / "text" / "zz.jsonl").write_text('{"text": "good"}\nbad\n')
    assert run(folder / "text", "--out", folder / "a.tokens") == 2
    assert sorted(path.name for path in folder.iterdir()) == ["text", "tokenizer.json"]
