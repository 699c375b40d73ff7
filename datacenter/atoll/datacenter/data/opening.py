"""From a job file's sections to batches, everything checked before a process trains."""

from __future__ import annotations

from pathlib import Path

from atoll.datacenter.data.batches import Batches, Shuffled
from atoll.datacenter.data.documents import Documents, in_memory
from atoll.datacenter.data.packing import Packed, Padded
from atoll.datacenter.data.stdlib import Split, stdlib_documents, stdlib_name
from atoll.datacenter.data.tokenizer import ByteTokenizer
from atoll.datacenter.errors import DataError
from atoll.datacenter.job.training import BatchSection, DataSection


def open_batches(data: DataSection, batch: BatchSection, seed: int, folder: Path, split: Split = "train") -> Batches:
    """Batches of a job.

    Args:
        data: the job's ``[data]``.
        batch: the job's ``[batch]``.
        seed: the job's seed: the order in which sequences come.
        folder: the job file's; paths are relative to it.
        split: what is trained on, or what is held out for evaluation.

    Raises:
        DataError: naming what is missing, damaged or too little, and what to do.
    """
    documents = _documents(data, folder, split)
    cut = Packed if data.packing else Padded
    return Batches(Shuffled(cut(documents, batch.sequence), batch.global_batch, seed))


def _documents(data: DataSection, folder: Path, split: Split) -> Documents:
    if data.source != "stdlib" or data.tokenizer != "bytes":
        raise DataError(f'data.source = "{data.source}" with the tokenizer {data.tokenizer} in {folder}')
    tokenizer = ByteTokenizer()
    return in_memory(map(tokenizer.encode, stdlib_documents(split)), tokenizer.vocab, f"{stdlib_name()}, {split}")
