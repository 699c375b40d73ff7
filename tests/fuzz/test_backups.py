"""Changed backups, by a faulty disk or by hand: restored whole or refused, without writing anywhere else."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from atoll.server.backup import back_up, last_restoration, read_manifest, restore
from atoll.server.backup.manifest import MANIFEST_FILE
from atoll.server.cli.output import when
from atoll.server.errors import CorruptDataError, ServerError
from tests.fuzz.material import FUZZ, changed
from tests.server.backup.test_backup import MADE_AT, fill

SECRET = b"what is outside of the backup"
PATHS = (
    "../secret",
    "ca/../../secret",
    "/etc/hostname",
    "..",
    ".",
    "",
    "ca",
    "./atoll.sqlite3",
    "ca//x",
    "a\x00b",
    "x" * 300,
)
NUMBERS: tuple[object, ...] = (
    -1,
    0,
    2**53 + 1,
    2**63,
    10**400,
    -(10**400),
    1e308,
    float("inf"),
    float("nan"),
    True,
    None,
    "7",
    [],
)


@dataclass(frozen=True)
class Place:
    """A backup, a place to restore to, and a file beside both."""

    root: Path
    kept: Path
    again: Path

    def write(self, manifest: bytes) -> None:
        (self.kept / MANIFEST_FILE).write_bytes(manifest)

    def restored(self) -> bool:
        """Restore; whether it was done. What lies beside is as it was, and of a refused one nothing is left."""
        done = False
        with contextlib.suppress(ServerError):
            made = restore(self.kept, self.again, now=MADE_AT)
            assert when(made.manifest.made_at)
            done = True
        assert self.again.exists() == done
        shutil.rmtree(self.again, ignore_errors=True)
        assert sorted(path.name for path in self.root.iterdir()) == ["kept", "place", "secret"]
        assert [path.name for path in self.again.parent.iterdir()] == ["secret"]
        assert {(folder / "secret").read_bytes() for folder in (self.root, self.again.parent)} == {SECRET}
        return done


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    root = tmp_path_factory.mktemp("restored")
    data = tmp_path_factory.mktemp("data") / "data"
    fill(data)
    back_up(data, root / "kept", now=MADE_AT, copy=True)
    found = Place(root, root / "kept", root / "place" / "again")
    found.again.parent.mkdir()
    for folder in (root, found.again.parent):
        (folder / "secret").write_bytes(SECRET)
    return found


@pytest.fixture
def valid(place: Place) -> Iterator[bytes]:
    """The manifest; it and the file that a test changes are put back."""
    before = {path: path.read_bytes() for path in place.kept.rglob("*") if path.is_file()}
    yield before[place.kept / MANIFEST_FILE]
    for path, content in before.items():
        path.write_bytes(content)


def entry(path: str, content: bytes) -> dict[str, object]:
    return {"path": path, "size_bytes": len(content), "digest": blake3(content).hexdigest()}


@st.composite
def tampered(draw: st.DrawFn, valid: bytes) -> bytes:
    """The manifest with one to three of its values replaced by odd ones; entries that name a file are true of it."""
    found: dict[str, Any] = json.loads(valid)
    for _ in range(draw(st.integers(1, 3))):
        match draw(st.sampled_from(("path", "number", "blob", "lose"))):
            case "path":
                found["files"].append(entry(draw(st.sampled_from(PATHS)), SECRET))
            case "number":
                places = [(found, "made_at"), (found, "stored_bytes"), (found, "format")]
                places += [(found["files"][0], "size_bytes"), (found["runs"][0], "rounds_released")]
                holder, name = draw(st.sampled_from(places))
                holder[name] = draw(st.sampled_from(NUMBERS))
            case "blob":
                found["blobs"].append(draw(st.sampled_from((*PATHS, "0" * 64, "../" * 20 + "abcd"))))
            case _:
                del found["files"][draw(st.integers(0, len(found["files"]) - 1))]
                found["files"].append(entry("operator.json", b"{}"))
    if draw(st.booleans()):
        found[draw(st.sampled_from(sorted(found)))] = draw(st.sampled_from((None, [], {}, "x", *NUMBERS)))
    return json.dumps(found).encode()


def test_manifests_that_a_disk_changed(place: Place, valid: bytes) -> None:
    @FUZZ
    @given(changed(valid))
    def every(raw: bytes) -> None:
        place.write(raw)
        place.restored()

    place.write(valid)
    assert place.restored()
    every()


def test_altered_manifests(place: Place, valid: bytes) -> None:
    @FUZZ
    @given(tampered(valid))
    def every(raw: bytes) -> None:
        place.write(raw)
        place.restored()

    every()


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_out(place: Place, valid: bytes, path: str) -> None:
    found = json.loads(valid)
    found["files"].append(entry(path, SECRET))
    place.write(json.dumps(found).encode())
    with pytest.raises(CorruptDataError, match=r"does not stay inside|cannot be read|plain file"):
        restore(place.kept, place.again, now=MADE_AT)
    assert not place.restored()


def test_a_link_in_a_back_up_is_not_followed(place: Place, valid: bytes) -> None:
    found = json.loads(valid)
    found["files"].append(entry("linked", SECRET))
    (place.kept / "linked").symlink_to(place.root / "secret")
    place.write(json.dumps(found).encode())
    assert not place.restored()
    (place.kept / "linked").unlink()


@pytest.mark.parametrize("name", ["atoll.sqlite3", "blob"])
def test_altered_files_with_matching_digests(place: Place, valid: bytes, name: str) -> None:
    """An inconsistent database is refused even if the manifest matches it; so is a blob under another name."""
    path = next(place.kept.glob("blobs/??/*")) if name == "blob" else place.kept / name
    content = path.read_bytes()

    @FUZZ
    @given(changed(content))
    def every(raw: bytes) -> None:
        path.write_bytes(raw)
        found = json.loads(valid)
        if name != "blob":
            found["files"] = [item for item in found["files"] if item["path"] != name] + [entry(name, raw)]
        place.write(json.dumps(found).encode())
        assert not (place.restored() and name == "blob" and raw != content)

    every()


READERS: tuple[tuple[str, Callable[[Path], object]], ...] = (
    ("restored.json", last_restoration),
    (MANIFEST_FILE, read_manifest),
)


@pytest.mark.parametrize(("name", "read"), READERS)
@pytest.mark.parametrize("text", ['{"restored_at": 1%s}' % ("0" * 400), "[" * 100_000, "{}", "\x00", '{"a":' * 50_000])
def test_notes_that_cannot_be(tmp_path: Path, name: str, read: Callable[[Path], object], text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(CorruptDataError):
        read(tmp_path)
