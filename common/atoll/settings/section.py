"""The base class of sections: frozen, strict, without unknown keys, with cross-field checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, model_validator


@dataclass(frozen=True)
class Hint:
    """Description of a key's allowed values for the reference and error messages, if its type is not enough."""

    allowed: str = ""
    default: str = ""


class SectionProblems(ValueError):  # noqa: N818  (a bundle of problems; the loader raises SettingsFileError from it)
    """Conflicts between keys of one section: (key, message) pairs."""

    def __init__(self, problems: tuple[tuple[str, str], ...]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{key}: {message}" for key, message in problems))


class Section(BaseModel):
    """A table of a settings file.

    Raises:
        pydantic.ValidationError: for a value of another type or range, an unknown key, or keys in conflict.
    """

    # Validators are built when a section is first used: a command's help needs none of them.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """The conflicts between keys of this section, as (key, what is wrong and what to do)."""
        yield from ()

    @model_validator(mode="after")
    def _no_conflicts(self) -> Section:
        found = tuple(self.conflicts())
        if found:
            raise SectionProblems(found)
        return self

    def unused(self, keys: tuple[str, ...], reason: str) -> Iterator[tuple[str, str]]:
        """A conflict for each of ``keys`` that the file sets without effect."""
        for key in keys:
            if key in self.model_fields_set:
                yield key, f"has no effect: {reason}; leave it out"
