"""Convert text files to one token file, in order and with bounded memory, on several threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from atoll.datacenter.data.documents import Tokens, token_dtype
from atoll.datacenter.data.text import TextFile, TextPieces
from atoll.datacenter.data.token_file import Header, read_header
from atoll.datacenter.data.token_writer import TokenWriter
from atoll.datacenter.data.tokenizer import Tokenizer

PIECE_BYTES = 1 << 20
_AHEAD = 2
"""Pieces per thread that are read before the first of them is written."""


@dataclass(frozen=True)
class _Made:
    """A tokenised piece of a file.

    Attributes:
        documents: tokens of each document.
        ends: whether the last document ends here; earlier ones always do.
        text_bytes: approximate bytes of text.
    """

    documents: list[Tokens]
    ends: bool
    text_bytes: int


def tokenise(
    files: Sequence[TextFile],
    tokenizer: Tokenizer,
    path: Path,
    *,
    end_token: int | None = None,
    threads: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> Header:
    """Write a token file. Each file is a document; in a ``.jsonl`` file each line is one.

    A file is tokenised in pieces of about a MiB that end with a line. Memory: a few pieces per thread.

    Args:
        files: files in the order of their documents.
        tokenizer: converts text to tokens.
        path: the token file; replaced when it is complete, and otherwise left unchanged.
        end_token: appended to each document.
        threads: number of threads that tokenise.
        progress: called with the bytes of text written since the last call.

    Returns:
        The header of the file.

    Raises:
        DataError: if text cannot be read or tokens cannot be written.
    """
    end = None if end_token is None else np.asarray([end_token], token_dtype(tokenizer.vocab))
    with TokenWriter(path, tokenizer.vocab, tokenizer.digest) as writer:
        for made in _in_order(files, tokenizer, threads):
            for number, tokens in enumerate(made.documents):
                writer.add(tokens)
                if made.ends or number < len(made.documents) - 1:
                    writer.end_document(end)
            if made.ends and not made.documents:
                writer.end_document(end)
            progress(made.text_bytes)
    return read_header(path)


def _in_order(files: Sequence[TextFile], tokenizer: Tokenizer, threads: int) -> Iterator[_Made]:
    waiting: deque[Future[_Made]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for file in files:
                pieces = TextPieces([file], PIECE_BYTES)
                for index in range(len(pieces)):
                    waiting.append(pool.submit(_make, pieces, index, tokenizer))
                    if len(waiting) > _AHEAD * threads:
                        yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for left in waiting:
                left.cancel()


def _make(pieces: TextPieces, index: int, tokenizer: Tokenizer) -> _Made:
    file = pieces.files[0]
    text_bytes = min(PIECE_BYTES, file.size_bytes - index * PIECE_BYTES)
    documents = [tokenizer.encode(text) for text in pieces.documents(index)]
    return _Made(documents, file.is_json_lines or index == len(pieces) - 1, text_bytes)
