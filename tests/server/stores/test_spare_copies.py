from pathlib import Path

import pytest

from atoll.server.buckets import parse_place
from atoll.server.stores import Store
from atoll.server.stores.blob_place import PLACE_FILE, BlobSettings
from atoll.server.stores.spare_copies import SpareCopies
from tests.server.stores.test_blob_stores import content, put, read


def test_the_only_files_are_never_spare(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data")
    name = put(store.blobs, content(5000)).name
    spare = SpareCopies(tmp_path / "data")
    assert spare.stored_bytes() == 0
    spare.clear()
    assert read(store.blobs, name) == content(5000)
    store.close()


def test_copies_are_removed_and_fetched_again(tmp_path: Path) -> None:
    place = parse_place(f"file://{tmp_path}/bucket")
    store = Store.open(tmp_path / "data", blob_settings=BlobSettings(place))
    name = put(store.blobs, content(5000)).name
    spare = SpareCopies(tmp_path / "data")
    assert spare.stored_bytes() > 5000
    spare.clear()
    assert spare.stored_bytes() == 0
    assert read(store.blobs, name) == content(5000)
    store.close()


def test_what_cannot_be_looked_at_is_an_error_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / PLACE_FILE).write_text("{")
    with pytest.raises(OSError, match="cannot be read"):
        SpareCopies(tmp_path).stored_bytes()
