"""Open the data of a job file, and check everything before a process trains."""

from __future__ import annotations

from pathlib import Path

from atoll.datacenter.data.batches import Batches, Shuffled, Source
from atoll.datacenter.data.digits import Digits
from atoll.datacenter.data.documents import Documents, in_memory
from atoll.datacenter.data.language import Vocabulary, for_model, vocabulary_of
from atoll.datacenter.data.own import open_own
from atoll.datacenter.data.packing import Packed, Padded
from atoll.datacenter.data.stdlib import Split, stdlib_documents, stdlib_name
from atoll.datacenter.data.stream import TextStream
from atoll.datacenter.data.text import PIECE_BYTES, TextPieces, find_files
from atoll.datacenter.data.token_file import open_token_file
from atoll.datacenter.data.tokenizer import open_tokenizer
from atoll.datacenter.errors import DataError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.job.training import SOURCES, BatchSection, DataSection

_BYTES_PER_TOKEN = 16
"""Sets the size of pieces of streamed text: large enough that a sequence seldom spans more than three pieces."""


def open_job_batches(job: SiloJob, folder: Path, split: Split = "train") -> Batches:
    """Open the data of a job and check it against its model: ``open_batches`` with the job's settings.

    Args:
        job: the parsed job file.
        folder: folder of the job file; paths are relative to it.
        split: training data or held-out data.

    Raises:
        DataError: if data is missing, damaged, too little or not for this model; names it and the remedy.
        LayoutError: if the config of the checkpoint of a ``transformers`` model cannot be read.
        MissingExtraError: if a required library is not installed.
    """
    kind, images = job.model.kind, job.data.source == "digits"
    if job.data.source in SOURCES and ((kind == "vision" and not images) or (kind == "llama" and images)):
        raise DataError(
            f'model.kind = "{kind}" cannot be trained on data.source = "{job.data.source}": '
            '"vision" takes "digits", "llama" takes "stdlib", "tokens" or "text"'
        )
    vocabulary = vocabulary_of(job.model)
    return open_batches(job.data, job.batch, job.job.seed, folder, split, vocabulary=vocabulary)


def open_batches(
    data: DataSection,
    batch: BatchSection,
    seed: int,
    folder: Path,
    split: Split = "train",
    *,
    vocabulary: Vocabulary | None = None,
) -> Batches:
    """Open the batches of a job.

    Args:
        data: the job's ``[data]``.
        batch: the job's ``[batch]``.
        seed: the job's seed, for the order of sequences.
        folder: folder of the job file; paths are relative to it.
        split: training data or held-out data (``stdlib`` and ``digits``).
        vocabulary: the model's, which must contain every token; not checked if None.

    Raises:
        DataError: if data is missing, damaged or too little; names it and the remedy.
        MissingExtraError: if a required library is not installed.
    """
    if split != "train" and data.source in {"tokens", "text"}:
        raise DataError(
            f'source = "{data.source}" has no held-out part: keep some text apart and use it in a separate job'
        )
    if data.source == "digits":
        return Batches(Shuffled(Digits(split), batch.global_batch, seed))
    if data.source not in SOURCES:
        own = for_model(open_own(data, batch.sequence, split), batch.sequence, vocabulary)
        return Batches(Shuffled(own, batch.global_batch, seed))
    source, vocab = _open_text(data, batch, seed, folder, split)
    if vocabulary is not None and vocab > vocabulary.size:
        remedy = f"set model.vocab = {vocab}" if vocabulary.built_in else "use the model's own tokenizer"
        raise DataError(f"the data has a vocabulary of {vocab}, the model's is {vocabulary.size}: {remedy}")
    return Batches(source)


def _open_text(data: DataSection, batch: BatchSection, seed: int, folder: Path, split: Split) -> tuple[Source, int]:
    if data.source == "text":
        tokenizer = open_tokenizer(data.tokenizer, folder)
        piece_bytes = max(PIECE_BYTES, _BYTES_PER_TOKEN * batch.sequence)
        pieces = TextPieces(find_files([folder / (data.path or "")]), piece_bytes)
        stream = TextStream(pieces, tokenizer, batch.sequence, batch.global_batch, seed, packing=data.packing)
        return stream, tokenizer.vocab
    documents = _open_documents(data, folder, split)
    sequences = (Packed if data.packing else Padded)(documents, batch.sequence)
    return Shuffled(sequences, batch.global_batch, seed), documents.vocab


def _open_documents(data: DataSection, folder: Path, split: Split) -> Documents:
    if data.source == "tokens":
        return open_token_file(folder / (data.path or ""))
    tokenizer = open_tokenizer(data.tokenizer, folder)
    return in_memory(map(tokenizer.encode, stdlib_documents(split)), tokenizer.vocab, f"{stdlib_name()}, {split}")
