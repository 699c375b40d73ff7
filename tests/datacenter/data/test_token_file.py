"""Token files: what was written is read, and damage is named."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import blake3
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.datacenter.data.documents import Documents, Tokens, in_memory, token_dtype
from atoll.datacenter.data.token_file import HEADER_BYTES, open_token_file, read_header, verify
from atoll.datacenter.data.token_writer import TokenWriter
from atoll.datacenter.data.tokenizer import ByteTokenizer
from atoll.datacenter.errors import DataError

CHECKED_BYTES = 104
MADE_BY = ByteTokenizer.digest


def write(path: Path, documents: list[list[int]], vocab: int) -> None:
    with TokenWriter(path, vocab, MADE_BY) as writer:
        for document in documents:
            for start in range(0, len(document), 3):
                writer.add(np.asarray(document[start : start + 3], np.uint32))
            writer.end_document()


def same(found: Documents, documents: list[list[int]]) -> bool:
    kept = [document for document in documents if document]
    return [found.tokens[a:b].tolist() for a, b in zip(found.offsets, found.offsets[1:], strict=False)] == kept


@pytest.mark.parametrize(("vocab", "token_bytes"), [(2, 1), (256, 1), (257, 2), (65_536, 2), (65_537, 4), (1 << 32, 4)])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, vocab: int, token_bytes: int, data: st.DataObject
) -> None:
    tokens = st.lists(st.sampled_from([0, 1, vocab // 2, vocab - 1]), max_size=20)
    documents = data.draw(st.lists(tokens, max_size=8).filter(any))
    path = tmp_path_factory.mktemp("tokens") / "a.tokens"
    write(path, documents, vocab)
    found = verify(path)
    assert same(found, documents)
    assert (found.vocab, found.tokens.itemsize, found.name) == (vocab, token_bytes, str(path))
    header = read_header(path)
    assert header.tokenizer.hex() == MADE_BY
    assert header.file_bytes == path.stat().st_size
    kept = [np.asarray(document, token_dtype(vocab)) for document in documents if document]
    assert found.digest == in_memory(kept, vocab, "").digest
    assert list(path.parent.iterdir()) == [path]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "good.tokens"
    write(path, [list(range(100)), [7], list(range(200, 300))], 300)
    return path.read_bytes()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_file_with_a_changed_byte_or_another_length_is_never_taken(
    tmp_path_factory: pytest.TempPathFactory, good: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("bad") / "bad.tokens"
    match data.draw(st.sampled_from(["byte", "cut", "longer"])):
        case "byte":
            place = data.draw(st.integers(0, len(good) - 1))
            bad = bytearray(good)
            bad[place] ^= data.draw(st.integers(1, 255))
        case "cut":
            bad = bytearray(good[: data.draw(st.integers(0, len(good) - 1))])
        case _:
            bad = bytearray(good + data.draw(st.binary(min_size=1, max_size=300)))
    path.write_bytes(bad)
    padding = range(HEADER_BYTES + 2 * 201, HEADER_BYTES + 2 * 201 + 6)
    if len(bad) == len(good) and all(bad[at] == good[at] for at in range(len(good)) if at not in padding):
        assert verify(path).tokens.size == 201
        return
    with pytest.raises(DataError) as caught:
        verify(path)
    assert str(path) in str(caught.value)


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=400), magic=st.booleans())
def test_anything_else_is_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes, *, magic: bool) -> None:
    path = tmp_path_factory.mktemp("any") / "any.tokens"
    path.write_bytes(b"ATOLLTOK" * magic + content)
    with pytest.raises(DataError, match=r"any\.tokens"):
        open_token_file(path)


def resealed(content: bytes) -> bytes:
    """The header's checksum is valid again: the file was changed on purpose."""
    fields = content[:CHECKED_BYTES]
    return fields + blake3.blake3(fields).digest(length=16) + content[CHECKED_BYTES + 16 :]


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (8, struct.pack("<I", 2), "has version 2, this release reads 1"),
        (12, struct.pack("<I", 4), "has 4 bytes per token, a vocabulary of 300 needs 2"),
        (16, struct.pack("<Q", 0), "bad.tokens: a vocabulary of 0 tokens"),
        (16, struct.pack("<Q", 1 << 40), "a vocabulary of 1099511627776 tokens"),
        (16, struct.pack("<Q", 290), "token 191 is 290, but the vocabulary has 290"),
        (24, struct.pack("<Q", 1 << 62), "is truncated: it has 568 bytes"),
        (24, struct.pack("<Q", 202), "documents go from 0 to 201, not from 0 to 202"),
        (32, struct.pack("<Q", 1), "is too long: it has 568 bytes"),
        (40, bytes(32), "than its header says"),
        (HEADER_BYTES + 408 + 8, struct.pack("<q", 500), "document 1 goes from 500 back to 101"),
        (HEADER_BYTES + 408, struct.pack("<q", 1), "documents go from 1 to 201"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, good: bytes, place: int, value: bytes, says: str) -> None:
    path = tmp_path / "bad.tokens"
    path.write_bytes(resealed(good[:place] + value + good[place + len(value) :]))
    with pytest.raises(DataError) as caught:
        verify(path)
    assert says in str(caught.value)


def test_a_missing_or_empty_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"missing: No such file or directory: create the file with `atoll silo tokens`"
    ):
        open_token_file(tmp_path / "missing")
    write(tmp_path / "empty", [], 256)
    with pytest.raises(DataError, match="has no tokens"):
        open_token_file(tmp_path / "empty")


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.tokens"
    write(path, [[1, 2, 3]], 256)
    before = path.read_bytes()
    with pytest.raises(DataError, match="token 300 is not in"):
        write(path, [list(range(200)), [300]], 256)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_tokens_beyond_the_vocabulary_and_folders_that_are_missing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="token 300 is not in the vocabulary of 300"):
        write(tmp_path / "a", [[1, 300]], 300)
    with pytest.raises(DataError, match=r"a\.tokens: cannot be written: No such file or directory"):
        write(tmp_path / "missing" / "a.tokens", [[1]], 300)


def test_memory_of_writer_and_checker_does_not_grow_with_the_file(tmp_path: Path) -> None:
    block: Tokens = np.arange(1 << 16, dtype=np.uint32)
    tracemalloc.start()
    try:
        with TokenWriter(tmp_path / "large", 1 << 20, MADE_BY) as writer:
            for _ in range(256):
                writer.add(block)
                for _ in range(40):
                    writer.add(block[:1])
                    writer.end_document()
        written = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        seen: list[int] = []
        verify(tmp_path / "large", seen.append)
        checked = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(seen) == 4 * 256 * ((1 << 16) + 40)
    assert written < 8 << 20
    assert checked < 32 << 20
