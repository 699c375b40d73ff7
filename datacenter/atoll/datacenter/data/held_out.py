"""Held-out data of a job: a fixed sample of its sequences, in whole batches that any number of ranks can share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from atoll.datacenter.data.batches import Batch, batch_of, share_of
from atoll.datacenter.data.digits import Digits
from atoll.datacenter.data.documents import Documents, Tokens, in_memory
from atoll.datacenter.data.language import for_model, vocabulary_of
from atoll.datacenter.data.own import open_own
from atoll.datacenter.data.packing import IGNORED, Packed, Padded, Rows, Sequences
from atoll.datacenter.data.permutation import Permutation
from atoll.datacenter.data.stdlib import stdlib_documents, stdlib_name
from atoll.datacenter.data.text import TextPieces, find_files
from atoll.datacenter.data.token_file import open_token_file
from atoll.datacenter.data.tokenizer import open_tokenizer
from atoll.datacenter.errors import DataError
from atoll.datacenter.job.training import SOURCES

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.job.training import DataSection

MAX_TEXT_BYTES = 64 << 20
"""Maximum held-out text, which is tokenised into memory when the job starts; larger text needs a token file."""
_ORDER = 0
"""Seed of the sample, the same for all jobs: jobs with different seeds are evaluated on the same sequences."""
_READ_FILES = ("tokens", "text")
"""Sources without a held-out part of their own."""


@dataclass(frozen=True)
class HeldOut:
    """A sample of sequences, in batches of one size; rows that fill the last batch have no labels that count.

    Attributes:
        sequences: where the sample is drawn from.
        count: size of the sample, at most ``len(sequences)``.
        global_batch: rows of a batch, over all ranks.
    """

    sequences: Sequences
    count: int
    global_batch: int

    @property
    def batches(self) -> int:
        """Number of batches."""
        return -(-self.count // self.global_batch)

    def shares(self, rank: int, world: int) -> Iterator[Batch]:
        """Yield the rows of one of ``world`` data-parallel ranks, batch after batch."""
        places = Permutation(len(self.sequences), _ORDER, 0)
        for number in range(self.batches):
            start, stop = share_of(self.global_batch, rank, world)
            wanted = np.arange(start, stop, dtype=np.int64) + number * self.global_batch
            rows = self.sequences.rows(places(np.minimum(wanted, self.count - 1)))
            yield batch_of(_without_labels(rows, wanted >= self.count))


def _without_labels(rows: Rows, which: NDArray[np.bool_]) -> Rows:
    """Return a copy in which no label of these rows counts."""
    labels = rows.labels.copy()  # rows of a user's source may be views of its data
    labels[which] = IGNORED
    return replace(rows, labels=labels)


def open_held_out(job: SiloJob, folder: Path) -> HeldOut | None:
    """Open the evaluation data of a job; None without ``[evaluation]``.

    Args:
        job: the parsed job file.
        folder: folder of the job file; paths are relative to it.

    Raises:
        DataError: if held-out data is missing, damaged, empty or not for this model; names it and the remedy.
        LayoutError: if the config of the checkpoint of a ``transformers`` model cannot be read.
        MissingExtraError: if a required library is not installed.
    """
    if job.evaluation is None:
        return None
    sequences = _sequences(job, job.data, job.evaluation.path, folder)
    if not len(sequences):
        raise DataError(f"{sequences.name}: no held-out sequence: provide more text, or set batch.sequence lower")
    return HeldOut(sequences, min(job.evaluation.sequences, len(sequences)), job.batch.global_batch)


def _sequences(job: SiloJob, data: DataSection, path: str | None, folder: Path) -> Sequences:
    reads_files, vocabulary = data.source in _READ_FILES, vocabulary_of(job.model)
    if reads_files and path is None:
        raise DataError(
            f'evaluation.path is missing: data.source = "{data.source}" has no held-out part; keep some text apart, '
            "and name it there"
        )
    if not reads_files and path is not None:
        raise DataError(
            f'evaluation.path = "{path}" is not used: data.source = "{data.source}" has its own held-out part; '
            "leave it out"
        )
    if data.source not in SOURCES:
        return for_model(open_own(data, job.batch.sequence, "held_out"), job.batch.sequence, vocabulary)
    if data.source == "digits":
        return Digits("held_out")
    documents = _documents(data, folder / (path or ""), folder)
    if vocabulary is not None and documents.vocab > vocabulary.size:
        raise DataError(
            f"{documents.name} has a vocabulary of {documents.vocab}, the model's is {vocabulary.size}: use held-out "
            "data made with the same tokenizer"
        )
    return (Packed if data.packing else Padded)(documents, job.batch.sequence)


def _documents(data: DataSection, path: Path, folder: Path) -> Documents:
    if data.source == "tokens":
        return open_token_file(path)
    tokenizer = open_tokenizer(data.tokenizer, folder)
    texts, name = (_texts(path), str(path)) if data.source == "text" else (stdlib_documents("held_out"), stdlib_name())
    made: Iterator[Tokens] = map(tokenizer.encode, texts)
    return in_memory(made, tokenizer.vocab, f"{name}, held out")


def _texts(path: Path) -> Iterator[bytes]:
    pieces = TextPieces(find_files([path]))
    if pieces.size_bytes > MAX_TEXT_BYTES:
        raise DataError(
            f"evaluation.path = {path} has {pieces.size_bytes:,} bytes of text; at most {MAX_TEXT_BYTES:,} are "
            'tokenised into memory: give less text, or use token files ("atoll silo tokens") for both'
        )
    return (text for number in range(len(pieces)) for text in pieces.documents(number))
