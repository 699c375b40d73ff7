"""The packages: a licence, type information, and a pinned version of everything that the tests run with."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
LOCK = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
PINS = {canonicalize_name(pin.name): pin for pin in LOCK if pin.marker is None or pin.marker.evaluate()}
WHEEL = [ROOT / folder for folder in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]


def declared() -> list[Requirement]:
    """Everything that pyproject.toml asks for: dependencies, extras, groups, except Atoll's own extras."""
    extras = [text for texts in PROJECT["optional-dependencies"].values() for text in texts]
    groups = [text for texts in PYPROJECT["dependency-groups"].values() for text in texts]
    found = [Requirement(text) for text in (*PROJECT["dependencies"], *extras, *groups)]
    return [requirement for requirement in found if requirement.name != "atoll"]


def brought_along(requirement: Requirement, seen: set[str]) -> Iterator[str]:
    """Names of a requirement and of everything that it needs in this environment, once each."""
    name = canonicalize_name(requirement.name)
    key = f"{name}[{','.join(sorted(requirement.extras))}]"
    if key in seen:
        return
    seen.add(key)
    yield name
    try:
        needed = requires(name) or []
    except PackageNotFoundError:  # of the group `tools`, which is installed elsewhere
        return
    for further in map(Requirement, needed):
        wanted = [{"extra": extra} for extra in requirement.extras] or [{"extra": ""}]
        if further.marker is None or any(further.marker.evaluate(environment) for environment in wanted):
            yield from brought_along(further, seen)


def test_every_requirement_is_pinned_within_its_bounds() -> None:
    wrong = [
        str(requirement)
        for requirement in declared()
        if not (pin := PINS.get(canonicalize_name(requirement.name)))
        or not any(requirement.specifier.contains(version.version, prereleases=True) for version in pin.specifier)
    ]
    assert wrong == [], "run `make lock`"


def test_everything_that_they_bring_along_is_pinned() -> None:
    seen: set[str] = set()
    names = {name for requirement in declared() for name in brought_along(requirement, seen)}
    assert len(names) > 100
    assert names - set(PINS) == set(), "run `make lock`"


def test_a_pin_is_one_version() -> None:
    assert [str(pin) for pin in LOCK if [part.operator for part in pin.specifier] != ["=="]] == []


@pytest.mark.parametrize("folder", WHEEL, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_every_package_is_typed(folder: Path) -> None:
    packages = [path for path in folder.iterdir() if next(path.rglob("*.py"), None)]
    assert packages
    assert [path.name for path in packages if not (path / "py.typed").is_file()] == []


def test_the_licence_is_whole_and_declared() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["license"] == "Apache-2.0"
    assert text.count("\n") == 202
    assert "Version 2.0, January 2004" in text


def test_nothing_is_uploaded_by_mistake() -> None:
    """The name on the package index belongs to another project."""
    assert "Private :: Do Not Upload" in PROJECT["classifiers"]
