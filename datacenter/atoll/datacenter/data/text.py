"""Text on disk in pieces that any process finds by their number, without an index of the files' contents.

A file is cut every ``piece_bytes``; each cut moves to the end of its line (as in Hadoop's text input), so pieces are
whole lines. In a ``.jsonl`` file each line is a document: an object with a string ``text``. In any other file each
piece is a document.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import blake3
import numpy as np

from atoll.datacenter.errors import DataError

PIECE_BYTES = 64 << 10
MAX_LINE_BYTES = 1 << 20
"""A longer line of text is cut at a character."""
MAX_JSON_LINE_BYTES = 64 << 20
"""A longer line of JSON is refused."""
_BLOCK_BYTES = 64 << 10
_JSON_LINES = ".jsonl"


@dataclass(frozen=True)
class TextFile:
    """A file of text.

    Attributes:
        path: path of the file.
        name: path relative to the given folder, with forward slashes.
        size_bytes: size when the file was found.
    """

    path: Path
    name: str
    size_bytes: int

    @property
    def is_json_lines(self) -> bool:
        """Whether each line is a document."""
        return self.name.endswith(_JSON_LINES)


def find_files(paths: Sequence[Path]) -> tuple[TextFile, ...]:
    """Return files as given, and all files of folders sorted by name, without hidden and empty ones.

    Raises:
        DataError: if a path is missing, or nothing is found.
    """
    found: list[TextFile] = []
    for path in paths:
        if path.is_dir():
            names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
            found += [_file(path / name, name) for name in names if not any(p.startswith(".") for p in name.split("/"))]
        elif path.is_file():
            found.append(_file(path, path.name))
        else:
            raise DataError(f"{path}: no such file or folder: name one that contains text")
    files = tuple(file for file in found if file.size_bytes)
    if not files:
        raise DataError(f"{', '.join(map(str, paths))}: no file with text in it: name one")
    return files


def _file(path: Path, name: str) -> TextFile:
    return TextFile(path, name, path.stat().st_size)


class TextPieces:
    """The pieces of some files. Memory: a few hundred bytes per file.

    Args:
        files: the files, with their sizes when found.
        piece_bytes: distance between cuts, at least 4: the longest character.
    """

    def __init__(self, files: Sequence[TextFile], piece_bytes: int = PIECE_BYTES) -> None:
        self.files, self._piece_bytes = tuple(files), piece_bytes
        self._ends = np.cumsum([-(-file.size_bytes // piece_bytes) for file in self.files])
        state = blake3.blake3(piece_bytes.to_bytes(8, "little"))
        for file in self.files:
            state.update(f"{file.name}\0{file.size_bytes}\0".encode())
        self.digest = state.hexdigest()
        """Digest of names and sizes of files and distance of cuts, not of contents, which have not been read yet."""

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def size_bytes(self) -> int:
        """Total size of the files."""
        return sum(file.size_bytes for file in self.files)

    def documents(self, index: int) -> Iterator[bytes]:
        """Yield the documents of a piece. There may be none if a line is longer than a piece.

        Raises:
            DataError: if the file cannot be read, has changed its size, or a line is not JSON with a ``text``.
        """
        number = int(np.searchsorted(self._ends, index, side="right"))
        file = self.files[number]
        start = (index - (int(self._ends[number - 1]) if number else 0)) * self._piece_bytes
        try:
            begin, text = _read(file, start, start + self._piece_bytes)
        except OSError as error:
            raise DataError(f"{file.path}: cannot be read: {error.strerror}") from error
        if file.is_json_lines:
            yield from json_texts(file, begin, text)
        elif text:
            yield text


def _read(file: TextFile, start: int, stop: int) -> tuple[int, bytes]:
    """Return the offset at which a piece begins, and its text."""
    with file.path.open("rb") as opened:
        if (size := os.fstat(opened.fileno()).st_size) != file.size_bytes:
            raise DataError(
                f"{file.path} has {size} bytes now, it had {file.size_bytes}: data must not change during a job"
            )
        begin, end = _cut(opened, file, start), _cut(opened, file, stop)
        opened.seek(begin)
        return begin, opened.read(end - begin)


def _cut(opened: BinaryIO, file: TextFile, place: int) -> int:
    """Return the offset of the first line at or after ``place``; in a line that is too long, of the first character."""
    if place <= 0 or place >= file.size_bytes:
        return min(max(place, 0), file.size_bytes)
    longest = MAX_JSON_LINE_BYTES if file.is_json_lines else MAX_LINE_BYTES
    opened.seek(place - 1)
    passed = 0
    while passed < longest and (block := opened.read(_BLOCK_BYTES)):
        if (found := block.find(b"\n")) >= 0:
            return place + passed + found
        passed += len(block)
    if place - 1 + passed >= file.size_bytes:
        return file.size_bytes
    if file.is_json_lines:
        raise DataError(f"{file.path}: the line at byte {place} is longer than {MAX_JSON_LINE_BYTES} bytes: split it")
    opened.seek(place)
    following = opened.read(4)
    return place + next((skip for skip, byte in enumerate(following) if byte & 0xC0 != 0x80), 0)


def json_texts(file: TextFile, begin: int, text: bytes) -> Iterator[bytes]:
    """Yield the ``text`` of each line in UTF-8; skips empty lines.

    Args:
        file: the file, for errors.
        begin: offset of the first line in the file.
        text: whole lines.

    Raises:
        DataError: naming the file and the byte where the line begins.
    """
    for line in text.split(b"\n"):
        if line.strip():
            try:
                found = json.loads(line)
            except ValueError as error:
                raise DataError(f"{file.path}: the line at byte {begin} is not JSON: {error}") from error
            document = found.get("text") if isinstance(found, dict) else None
            if not isinstance(document, str):
                raise DataError(f'{file.path}: the line at byte {begin} has no "text" that is a string')
            yield document.encode("utf-8", "replace")
        begin += len(line) + 1
