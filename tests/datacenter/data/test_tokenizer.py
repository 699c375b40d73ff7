"""Text to tokens, against the library itself."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from atoll.datacenter.data.tokenizer import ByteTokenizer, HuggingFaceTokenizer, open_tokenizer
from atoll.datacenter.errors import DataError, MissingExtraError
from tests.datacenter.data.texts import TEXT, tokenizer_json


def test_bytes_are_tokens() -> None:
    found = open_tokenizer("bytes", Path())
    assert isinstance(found, ByteTokenizer)
    assert found.encode("né".encode()).tolist() == [110, 195, 169]
    assert found.encode(b"").size == 0


def test_a_hugging_face_tokenizer_gives_what_the_library_gives(tmp_path: Path) -> None:
    path = tokenizer_json(tmp_path)
    found = open_tokenizer(path.name, tmp_path)
    expected = tokenizers.Tokenizer.from_file(str(path)).encode(TEXT).ids
    assert found.encode(TEXT.encode()).tolist() == expected
    assert len(expected) < len(TEXT) / 2
    assert found.vocab == 280
    assert found.encode(b"").dtype == np.uint16
    assert found.digest != open_tokenizer(tokenizer_json(tmp_path, vocab=270).name, tmp_path).digest


def test_bytes_that_are_no_text_become_replacement_characters(tmp_path: Path) -> None:
    found = HuggingFaceTokenizer(tokenizer_json(tmp_path))
    assert found.encode(b"a\xffb").tolist() == found.encode("a\ufffdb".encode()).tolist()


def test_special_tokens_are_found_by_name(tmp_path: Path) -> None:
    found = HuggingFaceTokenizer(tokenizer_json(tmp_path))
    assert found.id_of("<|end|>") == 0
    with pytest.raises(DataError, match=r"has no token '<eos>' among its 280"):
        found.id_of("<eos>")


def test_files_that_are_no_tokenizers_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing\.json: cannot read a tokenizer"):
        open_tokenizer("missing.json", tmp_path)
    (tmp_path / "other.json").write_text('{"model": 3}')
    with pytest.raises(DataError, match=r"other\.json is not a tokenizer\.json of the tokenizers library"):
        open_tokenizer("other.json", tmp_path)


def test_without_the_library_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tokenizer_json(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r'needs tokenizers: pip install .*"\.\[tokenizers\]"'):
        open_tokenizer(path.name, tmp_path)
