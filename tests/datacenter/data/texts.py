"""Text and tokenizers to test with."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

TEXT = "the cat sat on the mat and the dog sat on the log while the bird sang to them both\n"


def tokenizer_json(folder: Path, vocab: int = 280) -> Path:
    """A byte-level BPE, trained on a few lines."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEXT] * 20, trainer)
    path = folder / "tokenizer.json"
    made.save(str(path))
    return path


def text_folder(folder: Path, files: int = 7, lines: int = 40) -> Path:
    """Files of numbered lines, two folders deep, and one of JSON lines."""
    for number in range(files):
        path = folder / f"part{number % 2}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{number}.{line} {TEXT}" for line in range(lines)))
    documents = [{"text": f"document {number}: {TEXT * (number % 3)}"} for number in range(lines)]
    (folder / "more.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (folder / ".hidden").write_text("not to be seen")
    return folder
