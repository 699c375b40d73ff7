"""The imports inside a package, read from the source, including those within functions and under ``TYPE_CHECKING``."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

Layers = Sequence[Sequence[str]]
"""Names of sub-rooms, lowest layer first. A sub-room imports only from lower layers and from itself."""
TOP = "__init__"
"""The sub-room of the package's own ``__init__.py``: what users import."""


@cache
def import_statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Every import statement in a file; each file is parsed once in a process, and must not change afterwards."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


@dataclass(frozen=True, slots=True)
class Import:
    """One import of a module of the package by another, both by their full names."""

    importer: str
    line: int
    imported: str

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


@dataclass(frozen=True)
class Package:
    """A package on the disk.

    Attributes:
        name: for example ``atoll.datacenter``.
        files: path of every module, by its full name.
    """

    name: str
    files: Mapping[str, Path]

    @classmethod
    def at(cls, folder: Path) -> Package:
        """Read the package whose folder is ``…/atoll/<name>``."""
        found = {}
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parents[1]).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        return cls(".".join(folder.parts[-2:]), found)

    @property
    def sub_rooms(self) -> set[str]:
        """Names of the folders and modules right below the package, and ``TOP``."""
        return {self.sub_room_of(name) for name in self.files}

    def sub_room_of(self, module: str) -> str:
        """Return the first name below the package, or ``TOP`` for the package itself."""
        return module.removeprefix(self.name).lstrip(".").partition(".")[0] or TOP

    def imports(self) -> Iterator[Import]:
        """Every import of one module of the package by another."""
        for name, path in self.files.items():
            for node in import_statements(path):
                for target in self._targets(name, path, node):
                    if target in self.files and target != name:
                        yield Import(name, node.lineno, target)

    def against(self, layers: Layers) -> list[str]:
        """Imports of a sub-room in the same layer or a higher one, as sentences."""
        height = {room: number for number, layer in enumerate(layers) for room in layer}
        found = []
        for one in self.imports():
            importer, imported = self.sub_room_of(one.importer), self.sub_room_of(one.imported)
            if importer != imported and height[imported] >= height[importer]:
                found.append(str(one))
        return found

    def cycle(self) -> list[str]:
        """Modules that import each other in a circle; empty if there is no circle."""
        graph: dict[str, set[str]] = {name: set() for name in self.files}
        for one in self.imports():
            graph[one.importer].add(one.imported)
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            return [str(name) for name in error.args[1]]
        return []

    def _targets(self, importer: str, path: Path, node: ast.AST) -> Iterator[str]:
        """Full names of what a statement imports: ``from a import b`` is ``a.b`` where that is a module."""
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = module or ""
                if level:
                    parent = importer.split(".")[: None if path.name == "__init__.py" else -1]
                    base = ".".join([*parent[: len(parent) - level + 1], *([module] if module else [])])
                for alias in names:
                    inner = f"{base}.{alias.name}"
                    yield inner if inner in self.files else base
