"""A synthetic next version of Atoll, made from the current sources, which are then the previous release.

It adds what a release may add: a migration (column, table), a field of an event, and fields of wire messages.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from atoll.server.stores.schema_version import head_revision
from tests.system.processes import HERE

_ROOT = HERE.parents[1]
_PACKAGES = ("server/atoll/server", "client/atoll/client", "protos/atoll/wire")
_KERNELS = "aggregation"
"""Stays where it is: its machine code is cached by path, and takes seconds to compile."""
VERSION = "99.0.0"


@dataclass(frozen=True)
class NextVersion:
    """A folder with its packages.

    Attributes:
        folder: precedes the checkout on the import path.
        revision: of its schema.
    """

    folder: Path
    revision: str

    @property
    def env(self) -> dict[str, str]:
        """The environment with which ``atoll`` runs this version."""
        return {"PYTHONPATH": os.pathsep.join((str(self.folder), str(HERE)))}

    @property
    def prefix(self) -> tuple[str, ...]:
        """Command prefix that keeps the tests from forking a process that has loaded the current version."""
        return (sys.executable,)


def make_next_version(folder: Path) -> NextVersion:
    """Copy the packages and change them."""
    for package in _PACKAGES:
        source = _ROOT / package
        skipped = shutil.ignore_patterns(_KERNELS) if package.startswith("server") else None
        shutil.copytree(source, folder / "atoll" / source.name, ignore=skipped)
    server, client, wire = (folder / "atoll" / Path(package).name for package in _PACKAGES)
    _append(server / "__init__.py", f'__version__ = "{VERSION}"\n__path__.append({str(_ROOT / _PACKAGES[0])!r})\n')
    made = NextVersion(folder, f"{int(head_revision()) + 1:04}")
    _migrate(server / "stores", made.revision)
    kind = '    kind: Literal["cohort_drawn"]'
    _replace(server / "rounds" / "events.py", kind, f"    lane: int = 0\n{kind}")
    messages = wire / "v1" / "participation_pb2.py"
    _replace(messages, "AddSerializedFile(b'", "AddSerializedFile(_next(b'")
    _replace(messages, "\n\n_globals = globals()", ")\n\n_globals = globals()")
    _replace(messages, "\n_sym_db =", f"{_NEXT_MESSAGES}\n_sym_db =")
    _replace(server / "rpc" / "participation.py", "server_version=", 'note="new", server_version=')
    said = 'client_version=version("atoll")'
    _replace(client / "_session" / "check_in.py", said, f'client_version="{VERSION}", note="new"')
    return made


_MIGRATION = '''"""What the next version adds."""

import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key = sa.PrimaryKeyConstraint("name", name="pk_colours")
    op.create_table("colours", sa.Column("name", sa.String(64), nullable=False), key)
    op.execute("INSERT INTO colours (name) VALUES ('red')")
    with op.batch_alter_table("runs") as batch:
        batch.add_column(sa.Column("colour", sa.Text(), nullable=False, server_default="red"))
'''
_NEXT_TABLES = """
runs.append_column(Column("colour", Text, nullable=False, server_default="red"))
colours = Table("colours", metadata, Column("name", _NAME, primary_key=True))
"""
_NEXT_MESSAGES = """
def _next(serialised):
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
    file = FileDescriptorProto.FromString(serialised)
    for message in file.message_type:
        if message.name in ("Hello", "Welcome"):
            message.field.add(
                name="note", json_name="note", number=1000,
                type=FieldDescriptorProto.TYPE_STRING, label=FieldDescriptorProto.LABEL_OPTIONAL,
            )
    return file.SerializeToString()

"""


def _migrate(stores: Path, revision: str) -> None:
    before = head_revision()
    script = _MIGRATION.format(revision=revision, before=before)
    (stores / "migrations" / "versions" / f"r{revision}_colours.py").write_text(script)
    _append(
        stores / "migrations" / "compatibility.py",
        f'USABLE_FROM = {{**USABLE_FROM, "{revision}": "{before}"}}\n',
    )
    _append(stores / "schema.py", _NEXT_TABLES)


def _append(path: Path, text: str) -> None:
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path.name} has changed: adapt {__name__}"
    path.write_text(text.replace(old, new), encoding="utf-8")
