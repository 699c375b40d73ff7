"""Batches opened from the sections of a job file."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from atoll.datacenter.data import open_batches, open_job_batches
from atoll.datacenter.data.language import Vocabulary
from atoll.datacenter.data.stdlib import Split, split_of, stdlib_documents
from atoll.datacenter.data.token_writer import TokenWriter
from atoll.datacenter.data.tokenizer import ByteTokenizer
from atoll.datacenter.errors import DataError, MissingExtraError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.job.training import BatchSection, DataSection
from atoll.settings import SettingsFileError, parse
from tests.datacenter.data.texts import text_folder, tokenizer_json

pytestmark = pytest.mark.slow


def data(text: str) -> DataSection:
    return DataSection(**tomllib.loads(text))


BATCH = BatchSection(sequence=32, global_batch=4)


def test_the_standard_library_is_there_in_two_parts_that_share_nothing() -> None:
    parts = {split: open_batches(data(""), BATCH, 0, Path(), split) for split in get_args(Split)}
    batch = parts["train"].next_step().share(0, 1)
    assert batch.tokens.shape == (4, 32)
    assert 9 < int(batch.tokens.min()) < int(batch.tokens.max()) < 256
    assert len({part.source.digest for part in parts.values()}) == 2
    train, held_out = (set(stdlib_documents(split)) for split in ("train", "held_out"))
    assert sum(map(len, train)) > 10 * sum(map(len, held_out)) > 100_000
    assert split_of("argparse.py") == "train"


def test_the_standard_library_is_the_same_in_any_folder_order(tmp_path: Path) -> None:
    for name in ("b.py", "a/z.py", "test/no.py", "a/tests/no.py", "a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(name)
    found = [*stdlib_documents("train", tmp_path), *stdlib_documents("held_out", tmp_path)]
    assert sorted(found) == [b"a/z.py", b"b.py"]
    with pytest.raises(DataError, match="has no source text of Python's standard library"):
        list(stdlib_documents("train", tmp_path / "a" / "tests" / "none"))


def test_a_token_file_of_the_same_documents_gives_the_same_batches(tmp_path: Path) -> None:
    with TokenWriter(tmp_path / "lib.tokens", 256, ByteTokenizer.digest) as writer:
        for document in stdlib_documents("train"):
            writer.add(np.frombuffer(document, np.uint8))
            writer.end_document()
    there = open_batches(data('source = "tokens"\npath = "lib.tokens"'), BATCH, 5, tmp_path, vocabulary=Vocabulary(256))
    here = open_batches(data(""), BATCH, 5, tmp_path)
    assert there.state() == here.state()
    for step in (0, 77_777):
        assert torch.equal(there.step(step).share(1, 2).labels, here.step(step).share(1, 2).labels)


@pytest.mark.parametrize("packing", ["true", "false"])
def test_text_streams_with_a_tokenizer(tmp_path: Path, packing: str) -> None:
    text_folder(tmp_path / "text")
    tokenizer_json(tmp_path)
    section = data(f'source = "text"\npath = "text"\ntokenizer = "tokenizer.json"\npacking = {packing}')
    batch = open_batches(section, BATCH, 5, tmp_path).next_step().share(0, 2)
    assert batch.tokens.shape == (2, 32)
    assert int(batch.tokens.max()) > 255


def test_digits_come_as_images_with_labels() -> None:
    found = open_batches(data('source = "digits"'), BATCH, 0, Path(), vocabulary=Vocabulary(10))
    batch = found.next_step().share(1, 2)
    assert (batch.tokens.shape, batch.tokens.dtype) == ((2, 1, 8, 8), torch.float32)
    assert (batch.labels.shape, batch.labels.dtype) == ((2,), torch.int64)
    assert (batch.documents, batch.positions) == (None, None)
    assert 0 <= batch.tokens.min() < batch.tokens.max() <= 1
    assert json.loads(json.dumps(found.state()))["step"] == 1
    assert [len(part) for part in batch.micro_batches(1)] == [1, 1]
    held_out = open_batches(data('source = "digits"'), BatchSection(global_batch=225), 0, Path(), "held_out")
    assert held_out.source.epoch(1) == 1


def test_digits_without_the_library_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtraError, match=r'pip install .*"\.\[vision\]"'):
        open_batches(data('source = "digits"'), BATCH, 0, Path())


@pytest.mark.parametrize(
    ("section", "batch", "says"),
    [
        ("", BatchSection(sequence=1 << 20, global_batch=64), r"sequences are too few for one global batch of 64"),
        ('source = "digits"', BatchSection(global_batch=5000), "digits, train: 1572 sequences are too few"),
        ('source = "tokens"\npath = "missing"', BATCH, "missing: No such file"),
        ('source = "text"\npath = "missing"', BATCH, "missing: no such file or folder"),
        ('tokenizer = "missing.json"', BATCH, "missing.json: cannot read a tokenizer"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_before_training(
    tmp_path: Path, section: str, batch: BatchSection, says: str
) -> None:
    with pytest.raises(DataError, match=says):
        open_batches(data(section), batch, 0, tmp_path)


def test_a_model_with_too_small_a_vocabulary_is_refused() -> None:
    with pytest.raises(DataError, match=r"vocabulary of 256, the model's is 100: set model\.vocab = 256"):
        open_batches(data(""), BATCH, 0, Path(), vocabulary=Vocabulary(100))


def test_a_held_out_part_of_users_own_text_is_theirs_to_make() -> None:
    with pytest.raises(DataError, match='source = "text" has no held-out part'):
        open_batches(data('source = "text"\npath = "x"'), BATCH, 0, Path(), "held_out")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('model.kind = "vision"', 'model.kind = "vision" cannot be trained on data.source = "stdlib"'),
        ('data.source = "digits"', 'model.kind = "llama" cannot be trained on data.source = "digits"'),
        ("model.vocab = 100", "the data has a vocabulary of 256, the model's is 100"),
    ],
)
def test_data_that_is_not_for_the_model_is_refused(text: str, says: str) -> None:
    job = parse(f'model.layers = 1\n{text}\n[job]\nname = "a"\nsteps = 1'.encode(), SiloJob, "job.toml")
    with pytest.raises(DataError) as caught:
        open_job_batches(job, Path())
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ('source = "stdlib"\npath = "x"', "path"),
        ('source = "tokens"\npath = "x"\ntokenizer = "bytes"', "tokenizer"),
        ('source = "digits"\npacking = false', "packing"),
        ('source = "tokens"', "path"),
    ],
)
def test_settings_that_a_source_does_not_read_and_paths_that_it_lacks_are_named(section: str, key: str) -> None:
    text = f'[job]\nname = "a"\nsteps = 1\n[model]\n[data]\n{section}'
    with pytest.raises(SettingsFileError, match=rf"data\.{key}"):
        parse(text.encode(), SiloJob, "job.toml")
