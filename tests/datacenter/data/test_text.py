"""Pieces of text: concatenated they equal the text, for any lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.datacenter.data import text
from atoll.datacenter.data.text import TextPieces, find_files
from atoll.datacenter.errors import DataError
from tests.datacenter.data.texts import text_folder


def pieces_of(path: Path, piece_bytes: int) -> list[list[bytes]]:
    pieces = TextPieces(find_files([path]), piece_bytes)
    return [list(pieces.documents(index)) for index in range(len(pieces))]


@settings(max_examples=60, deadline=None)
@given(content=st.text(st.sampled_from("a é\n漢"), min_size=1, max_size=200), piece_bytes=st.integers(4, 50))
def test_pieces_are_the_whole_text_in_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, content: str, piece_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(content.encode())
    found = [document for documents in pieces_of(path, piece_bytes) for document in documents]
    assert b"".join(found) == content.encode()
    assert all(document.endswith(b"\n") for document in found[:-1])


def test_a_line_that_is_too_long_is_cut_between_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MAX_LINE_BYTES", 16)
    monkeypatch.setattr(text, "_BLOCK_BYTES", 16)
    path = tmp_path / "a.txt"
    content = "漢字 é" * 40 + "\nshort\n" + "é" * 100
    path.write_text(content, encoding="utf-8")
    found = [document for documents in pieces_of(path, 21) for document in documents]
    assert "".join(document.decode() for document in found) == content
    assert len(found) > 15


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(max_size=40), min_size=1, max_size=20),
    piece_bytes=st.integers(4, 200),
    ending=st.sampled_from(["\n", "\r\n", "\n\n"]),
)
def test_each_line_of_json_is_a_document(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], piece_bytes: int, ending: str
) -> None:
    path = tmp_path_factory.mktemp("text") / "a.jsonl"
    path.write_bytes("".join(json.dumps({"text": found, "id": 1}) + ending for found in texts).encode())
    found = [document for documents in pieces_of(path, piece_bytes) for document in documents]
    assert found == [one.encode() for one in texts]


def test_folders_are_read_in_the_order_of_names_without_hidden_files(tmp_path: Path) -> None:
    names = [file.name for file in find_files([text_folder(tmp_path)])]
    assert names == ["more.jsonl", *[f"part0/{n}.txt" for n in (0, 2, 4, 6)], *[f"part1/{n}.txt" for n in (1, 3, 5)]]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "the line at byte 14 is not JSON"),
        (b"[1]", 'the line at byte 14 has no "text"'),
        (b'{"text": 3}', 'the line at byte 14 has no "text"'),
        (b'{"text": "\xff"}', "the line at byte 14 is not JSON"),
        (b'"' + b"x" * 200, "the line at byte 60 is longer than 32 bytes: split it"),
    ],
)
def test_lines_that_are_no_documents_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes, says: str
) -> None:
    monkeypatch.setattr(text, "MAX_JSON_LINE_BYTES", 32)
    monkeypatch.setattr(text, "_BLOCK_BYTES", 32)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + line + b"\n")
    with pytest.raises(DataError) as caught:
        pieces_of(path, 60)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_changed_or_went_away_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("some text\n")
    pieces = TextPieces(find_files([path]))
    path.write_text("some other text\n")
    with pytest.raises(DataError, match="has 16 bytes now, it had 10"):
        list(pieces.documents(0))
    path.unlink()
    with pytest.raises(DataError, match=r"a\.txt: cannot be read"):
        list(pieces.documents(0))


def test_nothing_to_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        find_files([tmp_path / "missing"])
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError, match="no file with text in it"):
        find_files([tmp_path])
