"""Token files: documents as tokens on disk, mapped into memory by every process that reads them.

Everything is little-endian::

    offset  bytes  what
         0      8  "ATOLLTOK"
         8      4  version, 1
        12      4  bytes per token: 1, 2 or 4 (unsigned)
        16      8  vocabulary: every token is below it
        24      8  tokens T
        32      8  documents D
        40     32  BLAKE3 of: bytes per token (one byte), tokens, offsets
        72     32  BLAKE3 of the tokenizer that made them (of its tokenizer.json, or of "bytes")
       104     16  BLAKE3 of the 104 bytes before, first half
       120      8  zero
       128         T tokens, then zeros up to a multiple of 8
                   D + 1 offsets of documents (int64), from 0 to T, rising

Opening a file does not check the digest of its tokens, which takes reading all of them; ``verify`` does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import blake3
import numpy as np
from numpy.typing import NDArray

from atoll.datacenter.data.documents import MAX_VOCAB, Documents, new_digest, token_dtype
from atoll.datacenter.errors import DataError

MAGIC, VERSION = b"ATOLLTOK", 1
HEADER_BYTES = 128
_FIELDS = struct.Struct("<8sIIQQQ32s32s")
_CHECK_BYTES = 16
_OFFSET_BYTES = 8
_BLOCK_BYTES = 8 << 20
"""Bytes of a file that are checked at a time."""


@dataclass(frozen=True)
class Header:
    """Header of a token file.

    Attributes:
        vocab: every token is below it; determines the bytes per token.
        tokens: number of tokens.
        documents: number of documents.
        digest: digest of tokens and offsets, 32 bytes.
        tokenizer: digest of the tokenizer, 32 bytes.
    """

    vocab: int
    tokens: int
    documents: int
    digest: bytes
    tokenizer: bytes

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return token_dtype(self.vocab).itemsize

    @property
    def offsets_at(self) -> int:
        """Offset of the document offsets in the file."""
        return HEADER_BYTES + -(-self.tokens * self.token_bytes // _OFFSET_BYTES) * _OFFSET_BYTES

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return self.offsets_at + (self.documents + 1) * _OFFSET_BYTES

    def pack(self) -> bytes:
        """Return the first HEADER_BYTES of a file."""
        fields = _FIELDS.pack(
            MAGIC, VERSION, self.token_bytes, self.vocab, self.tokens, self.documents, self.digest, self.tokenizer
        )
        return (fields + blake3.blake3(fields).digest(length=_CHECK_BYTES)).ljust(HEADER_BYTES, b"\0")


def read_header(path: Path) -> Header:
    """Read the header of a token file and check it against itself and the file's size.

    Raises:
        DataError: naming the file, the problem and the remedy.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEADER_BYTES)
            file_bytes = file.seek(0, 2)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}: create the file with `atoll silo tokens`") from error
    if head[: len(MAGIC)] != MAGIC:
        raise DataError(f"{path} is not a token file: it begins with {head[: len(MAGIC)]!r}, not {MAGIC!r}")
    if len(head) < HEADER_BYTES:
        raise DataError(f"{path} is truncated: {len(head)} bytes are less than the header's {HEADER_BYTES}")
    _, version, token_bytes, vocab, tokens, documents, digest, tokenizer = _FIELDS.unpack_from(head)
    if version != VERSION:
        raise DataError(f"{path} has version {version}, this release reads {VERSION}: create the file again")
    check = head[_FIELDS.size :]
    if check != blake3.blake3(head[: _FIELDS.size]).digest(length=_CHECK_BYTES).ljust(len(check), b"\0"):
        raise DataError(f"{path} has a damaged header: copy or create the file again")
    if not 1 <= vocab <= MAX_VOCAB:
        raise DataError(f"{path}: a vocabulary of {vocab} tokens, allowed are 1 to {MAX_VOCAB}: create the file again")
    header = Header(vocab, tokens, documents, digest, tokenizer)
    if token_bytes != header.token_bytes:
        raise DataError(f"{path} has {token_bytes} bytes per token, a vocabulary of {vocab} needs {header.token_bytes}")
    if file_bytes != header.file_bytes:
        wrong = "truncated" if file_bytes < header.file_bytes else "too long"
        raise DataError(
            f"{path} is {wrong}: it has {file_bytes} bytes, but {tokens} tokens in {documents} documents need "
            f"{header.file_bytes}: copy or create the file again"
        )
    return header


def open_token_file(path: Path) -> Documents:
    """Map the documents of a token file: only the offsets are read at once.

    Raises:
        DataError: naming the file, the problem and the remedy.
    """
    header = read_header(path)
    if not header.tokens:
        raise DataError(f"{path} has no tokens: create the file from text that is not empty")
    offsets: NDArray[np.int64] = np.memmap(path, "<i8", "r", header.offsets_at, (header.documents + 1,))
    _check_offsets(path, offsets, header.tokens)
    tokens = np.memmap(path, token_dtype(header.vocab), "r", HEADER_BYTES, (header.tokens,))
    return Documents(tokens, offsets, header.vocab, str(path), header.digest.hex())


def verify(path: Path, progress: Callable[[int], None] = lambda _: None) -> Documents:
    """Read a whole token file, and check every token and the digest.

    Args:
        path: path of the file.
        progress: called with the bytes of tokens read since the last call.

    Raises:
        DataError: see ``open_token_file``; also if a token or the digest is wrong.
    """
    documents = open_token_file(path)
    digest = new_digest(documents.tokens.dtype)
    block = _BLOCK_BYTES // documents.tokens.itemsize
    for start in range(0, documents.tokens.size, block):
        tokens = documents.take(start, start + block)
        digest.update(tokens.view(np.uint8).data)
        progress(tokens.nbytes)
    digest.update(documents.offsets.view(np.uint8).data)
    if digest.hexdigest() != documents.digest:
        raise DataError(
            f"{path} has other contents (digest {digest.hexdigest()}) than its header says ({documents.digest}): "
            "copy or create the file again"
        )
    return documents


def _check_offsets(path: Path, offsets: NDArray[np.int64], tokens: int) -> None:
    if offsets[0] != 0 or offsets[-1] != tokens:
        raise DataError(
            f"{path}: documents go from {offsets[0]} to {offsets[-1]}, not from 0 to {tokens}: create it again"
        )
    block = _BLOCK_BYTES // _OFFSET_BYTES
    for start in range(0, offsets.size - 1, block):
        steps = np.diff(offsets[start : start + block + 1])
        if steps.min() < 0:
            document = start + int(np.argmin(steps))
            first, last = offsets[document : document + 2]
            raise DataError(f"{path}: document {document} goes from {first} back to {last}: create the file again")
